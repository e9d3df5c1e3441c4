"""Training lengths and periods as experiment configs give them."""

import logging
from collections.abc import Mapping
from typing import Any

from determined.errors import TrialError
from determined.pytorch._units import Batch, Epoch, Record, TrainUnit

logger = logging.getLogger("determined.pytorch")


def unit_from_config(
    length: int | Mapping[str, Any], key: str, hparams: Mapping[str, Any]
) -> TrainUnit | None:
    """`{batches|epochs|records: n}` (or a plain number of batches) as a unit; None for 0.

    `key` names the place in the config, for errors. Records become batches by the hyperparameter
    `global_batch_size`.
    """
    if isinstance(length, int):
        length = {"batches": length}
    given = {unit: n for unit, n in length.items() if n is not None}
    if len(given) != 1:
        raise TrialError(f"{key} must have one of batches, epochs and records, not {dict(length)!r}")
    [(unit, n)] = given.items()
    if not isinstance(n, int) or n < 0:
        raise TrialError(f"{key}.{unit} is {n!r}: it must be an integer")
    if n == 0:
        return None
    match unit:
        case "batches":
            return Batch(n)
        case "epochs":
            return Epoch(n)
        case "records":
            return in_batches(Record(n), key, hparams)
    raise TrialError(f"{key} has the unit {unit!r}: it must be batches, epochs or records")


def in_batches(unit: Record, key: str, hparams: Mapping[str, Any]) -> Batch:
    """Records as batches, by the hyperparameter `global_batch_size`. `key` names their place, for errors."""
    batch_size = hparams.get("global_batch_size")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise TrialError(f"{key} is in records, which needs the hyperparameter global_batch_size")
    return unit.in_batches(batch_size)


def configured_max_length(config: Mapping[str, Any], hparams: Mapping[str, Any]) -> TrainUnit | None:
    """How long the config's searcher wants a trial to train: by `max_length`, else by `max_time`."""
    searcher = config.get("searcher") or {}
    if searcher.get("max_length") is not None:
        return unit_from_config(searcher["max_length"], "searcher.max_length", hparams)
    if searcher.get("time_metric") in ("batches", "epochs") and searcher.get("max_time"):
        return unit_from_config({searcher["time_metric"]: searcher["max_time"]}, "searcher.max_time", hparams)
    return None


def warn_of_other_length(config: Mapping[str, Any], max_length: TrainUnit) -> None:
    """Say so when the code trains longer or shorter than the search expects."""
    searcher = config.get("searcher") or {}
    kind = {"batches": Batch, "epochs": Epoch}.get(searcher.get("time_metric") or "")
    if kind is not None and searcher.get("max_time") and max_length != kind(searcher["max_time"]):
        logger.warning(
            "max_length=%s differs from searcher.max_time, which is %d %s: the search stops trials by the latter",
            max_length,
            searcher["max_time"],
            searcher["time_metric"],
        )
