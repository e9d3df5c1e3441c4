"""From options to an experiment configuration."""

from typing import Any

import pytest

from detlab_magics import searchspace
from detlab_magics.capture import Captured
from detlab_magics.config import Options, experiment_config, summary
from detlab_magics.errors import OptionError
from detlab_master.core.expconf.validate import resolve

SEARCHED = searchspace.space({"rate": searchspace.loguniform(1e-4, 1e-1, count=2)})


def code(
    hyperparameters: dict[str, Any] | None = None,
    *,
    needs_batch_size: bool = False,
    entrypoint: str | list[str] = "model_def:Trial",
) -> Captured:
    shown = SEARCHED if hyperparameters is None else hyperparameters
    return Captured("pass\n", "Trial", entrypoint, shown, frozenset(), needs_batch_size)


def options(**given: Any) -> Options:
    return Options(**{"metric": "accuracy", "smaller_is_better": False, "max_length": 600, **given})


def test_one_budget_is_both_the_searchs_and_the_trainings() -> None:
    config = experiment_config(code(), options(max_trials=16), {})
    assert config == {
        "name": "Trial",
        "entrypoint": "model_def:Trial",
        "hyperparameters": SEARCHED,
        "searcher": {
            "name": "adaptive_asha",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_trials": 16,
            "max_length": {"batches": 600},
            "time_metric": "batches",
            "max_time": 600,
        },
        "min_validation_period": {"batches": 37},  # 600 / 4 / 4: where the lowest rung is
    }
    assert summary(config) == "adaptive_asha of 16 trials, looking for the highest accuracy"


@pytest.mark.parametrize("searcher", [None, "single", "random", "grid", "asha", "adaptive_asha"])
@pytest.mark.parametrize("trials", [1, 3, 4, 64, 5000])
@pytest.mark.parametrize("length", [1, 3, 4, 1000])
def test_the_master_takes_what_is_made(searcher: str | None, trials: int, length: int) -> None:
    countable = searcher not in ("single", "grid")
    made = experiment_config(
        code(), options(searcher=searcher, max_trials=trials if countable else None, max_length=length), {}
    )
    assert 1 <= made["min_validation_period"]["batches"] <= length
    defaults = {
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp"},
        "default_compute_resource_pool": "default",
    }
    resolved = resolve(made, defaults=defaults, experiment_seed=1, default_name="x")
    assert resolved.warnings == []
    assert resolved.config.searcher.name == {"asha": "async_halving"}.get(
        str(searcher), searcher or "adaptive_asha"
    )


def test_options_are_laid_over_the_cell_and_the_cell_over_the_file() -> None:
    base = {
        "name": "of the file",
        "labels": ["kept"],
        "hyperparameters": {"rate": 1, "depth": 2, "global_batch_size": 8},
        "searcher": {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"epochs": 1}},
        "resources": {"slots_per_trial": 2, "max_slots": 4},
        "min_validation_period": {"epochs": 1},
    }
    config = experiment_config(
        code(needs_batch_size=True), Options(slots=0, pool="gpus", batch_size=64, max_trials=3), base
    )
    assert config["name"] == "of the file"
    assert config["labels"] == ["kept"]
    assert config["hyperparameters"] == {**SEARCHED, "depth": 2, "global_batch_size": 64}
    assert config["searcher"] == {
        "name": "random",
        "metric": "loss",
        "max_trials": 3,
        "max_length": {"epochs": 1},
    }
    assert config["resources"] == {"slots_per_trial": 0, "max_slots": 4, "resource_pool": "gpus"}
    assert config["min_validation_period"] == {"epochs": 1}


def test_another_searcher_drops_what_was_the_first_ones() -> None:
    base = {
        "searcher": {
            "name": "adaptive_asha",
            "metric": "loss",
            "max_rungs": 3,
            "max_trials": 2,
            "time_metric": "batches",
            "max_time": 9,
        }
    }
    config = experiment_config(code(), Options(searcher="grid", max_length=50), base)
    assert config["searcher"] == {"name": "grid", "metric": "loss", "max_length": {"batches": 50}}


def test_a_script_says_its_length_itself() -> None:
    script = code({}, entrypoint=["python3", "model_def.py"])
    config = experiment_config(script, Options(metric="loss"), {})
    assert config["searcher"] == {"name": "single", "metric": "loss"}
    assert "min_validation_period" not in config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": None, "max_trials": 1}, "--metric accuracy"),
        ({}, "say with --max-trials how many trials adaptive_asha may run"),
        ({"searcher": "grid", "max_trials": 4}, "grid runs every combination .*: leave --max-trials out"),
        ({"searcher": "single", "max_trials": 4}, "single runs one trial"),
        ({"searcher": "bayes"}, "there is no searcher 'bayes'; there are single, random, grid, asha"),
        ({"max_trials": 1, "max_length": None}, "say with --max-length"),
        ({"max_trials": 0}, "--max-trials is 0: it must be at least 1"),
        ({"max_trials": 1, "validation_period": 0}, "--validation-period is 0"),
        ({"max_trials": 1, "slots": -1}, "--slots is -1: it must be at least 0"),
    ],
)
def test_what_is_missing_or_contradicts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        experiment_config(code(), options(**given), {})


def test_a_batch_size_that_is_asked_for_must_be_said() -> None:
    with pytest.raises(OptionError, match="say it with --batch-size"):
        experiment_config(code(needs_batch_size=True), options(max_trials=1), {})


def test_a_section_that_is_none() -> None:
    with pytest.raises(
        OptionError, match="searcher is 'random' in the configuration file: it must hold keys"
    ):
        experiment_config(code(), options(max_trials=1), {"searcher": "random"})
