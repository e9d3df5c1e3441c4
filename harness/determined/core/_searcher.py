"""The older way to learn how long to train. Kept for code that loops over `searcher.operations()`."""

import enum
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from determined.core._distributed import DistributedContext
from determined.core._train import TrainContext

logger = logging.getLogger("determined.core")


class SearcherMode(enum.Enum):
    """Which ranks call `operations()`: all of them in step, or the chief alone."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class Unit(enum.Enum):
    """What `searcher.max_length` counts."""

    EPOCHS = "epochs"
    RECORDS = "records"
    BATCHES = "batches"


class SearcherOperation:
    """Train until `length`, then call `report_completed`."""

    def __init__(self, train: TrainContext, length: int, *, is_chief: bool) -> None:
        self._train = train
        self._length = length
        self._is_chief = is_chief
        self._completed = False

    @property
    def length(self) -> int:
        """How long to train in all, in the unit of `searcher.max_length`."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Report how much of `length` is done. Only the chief reports."""
        self._require_chief("report_progress")
        if self._completed:
            raise RuntimeError("report_progress() was called after report_completed()")
        self._train.report_progress(min(1.0, length / self._length))

    def report_completed(self, searcher_metric: Any) -> None:
        """Say that the training is done. Once, by the chief. The search goes by the reported validations."""
        self._require_chief("report_completed")
        if self._completed:
            raise RuntimeError("report_completed() was called twice for one operation")
        self._completed = True
        logger.info("trained for %s with a searcher metric of %s", self._length, searcher_metric)

    def _require_chief(self, method: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"{method}() was called on a worker: only the chief reports")


class SearcherContext:
    """Get it as `core_context.searcher`. Deprecated: give the training length in code."""

    def __init__(
        self, train: TrainContext, distributed: DistributedContext, length: int, unit: Unit | None
    ) -> None:
        self._train = train
        self._distributed = distributed
        self._length = length
        self._unit = unit

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yields one operation, as long as `searcher.max_length`.

        `auto_ack=False` changes nothing since there is one operation only: see `acknowledge_out_of_ops`.
        """
        warnings.warn(
            "core_context.searcher.operations() is deprecated: give the training length in your own code",
            FutureWarning,
            stacklevel=2,
        )
        is_chief = self._distributed.rank == 0
        if searcher_mode is SearcherMode.ChiefOnly and not is_chief:
            raise RuntimeError(f"operations() was called on rank {self._distributed.rank} in mode ChiefOnly")
        return self._operations(is_chief)

    def _operations(self, is_chief: bool) -> Iterator[SearcherOperation]:
        operation = SearcherOperation(self._train, self._length, is_chief=is_chief)
        yield operation
        if is_chief and not operation._completed:
            raise RuntimeError(
                "the loop over operations() went on without report_completed() for the operation"
            )

    def acknowledge_out_of_ops(self) -> None:
        """Does nothing: the master no longer waits for it."""

    def get_configured_units(self) -> Unit | None:
        """The unit of `searcher.max_length`, None when it is a plain number."""
        return self._unit


class SearcherContextMissing(SearcherContext):
    """Stands in when the config has no `searcher.max_length`: any use says so."""

    def __init__(self) -> None:
        """Takes nothing: there is no length."""

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        raise self._missing()

    def acknowledge_out_of_ops(self) -> None:
        raise self._missing()

    def get_configured_units(self) -> Unit | None:
        raise self._missing()

    @staticmethod
    def _missing() -> ValueError:
        return ValueError(
            "the experiment config has no searcher.max_length, which core_context.searcher needs: "
            "set it, or give the training length in your own code"
        )


def searcher_context(
    config: Mapping[str, Any], train: TrainContext, distributed: DistributedContext
) -> SearcherContext:
    """The searcher context for an experiment config."""
    length = configured_length(config)
    if length is None:
        return SearcherContextMissing()
    return SearcherContext(train, distributed, *length)


def configured_length(config: Mapping[str, Any]) -> tuple[int, Unit | None] | None:
    """`searcher.max_length` and its unit, or None when it is not set."""
    max_length = (config.get("searcher") or {}).get("max_length")
    if max_length is None:
        return None
    if isinstance(max_length, int):
        return max_length, None
    [(unit, length)] = [(unit, length) for unit, length in max_length.items() if length is not None]
    return int(length), Unit(unit)
