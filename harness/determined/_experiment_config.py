"""An experiment config as training code meets it: a dict, with names for what is often asked of it."""

from typing import Any


class ExperimentConfig(dict[str, Any]):
    """The dict of an experiment config. What it does not say has the default of a cluster."""

    def debug_enabled(self) -> bool:
        return bool(self.get("debug"))

    def get_entrypoint(self) -> str | list[str] | None:
        """The command, or `module:TrialClass`, that a trial runs."""
        return self.get("entrypoint")

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return self._section("checkpoint_storage")

    def get_searcher_metric(self) -> str | None:
        """The validation metric that the search goes by."""
        return self._section("searcher").get("metric")

    def get_records_per_epoch(self) -> int | None:
        """The older way to say how long an epoch is; None where the config does not."""
        return self.get("records_per_epoch") or None

    def get_min_validation_period(self) -> dict[str, int]:
        """`{batches|epochs|records: n}`; empty: validations are at the end only."""
        return self._section("min_validation_period")

    def get_min_checkpoint_period(self) -> dict[str, int]:
        """`{batches|epochs|records: n}`; empty: checkpoints are saved at the end and by the policy only."""
        return self._section("min_checkpoint_period")

    def get_optimizations_config(self) -> dict[str, Any]:
        return self._section("optimizations")

    def averaging_training_metrics_enabled(self) -> bool:
        """Whether the metrics of several processes are averaged: always, unless the config says no."""
        return bool(self.get_optimizations_config().get("average_training_metrics", True))

    def scheduling_unit(self) -> int:
        """Batches between two reports of a trial class."""
        return int(self.get("scheduling_unit") or 100)

    def slots_per_trial(self) -> int:
        slots = self._section("resources").get("slots_per_trial")
        return 1 if slots is None else int(slots)

    def native_parallel_enabled(self) -> bool:
        return bool(self._section("resources").get("native_parallel"))

    def experiment_seed(self) -> int:
        return int(self._section("reproducibility").get("experiment_seed") or 0)

    def profiling_enabled(self) -> bool:
        return bool(self._section("profiling").get("enabled"))

    def _section(self, name: str) -> dict[str, Any]:
        return self.get(name) or {}
