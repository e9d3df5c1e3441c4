"""Lengths and periods of training, counted in batches, epochs or records."""

from collections.abc import Callable, Collection

# Every n-th step, the steps of a collection, or those that a function picks. Steps count from 1.
Steps = int | Collection[int] | Callable[[int], bool]


class TrainUnit:
    """A length or period of training; use `Batch`, `Epoch` or `Record`."""

    def __init__(self, value: Steps) -> None:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{type(self).__name__}({value}): a number of steps must be at least 1")
        if not isinstance(value, int | Collection) and not callable(value):
            raise TypeError(
                f"{type(self).__name__} takes an int, a collection of ints or a function, not {value!r}"
            )
        self.value = value

    def should_stop(self, step_num: int) -> bool:
        """Whether the period ends after `step_num` steps (batches or epochs) in all."""
        if isinstance(self.value, int):
            return step_num % self.value == 0
        if isinstance(self.value, Collection):
            return step_num in self.value
        return bool(self.value(step_num))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, TrainUnit) and other.value == self.value

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))


class Batch(TrainUnit):
    """Steps that are batches."""


class Epoch(TrainUnit):
    """Steps that are epochs: passes over the training data loader."""


class Record(TrainUnit):
    """Steps that are records: items of the training data. `Trainer.fit` counts them in batches."""

    def in_batches(self, batch_size: int) -> Batch:
        """The boundaries in batches of `batch_size` records over all slots: at the first that reaches each.

        A number of records becomes a whole number of batches, rounded down, of at least 1.
        """
        value = self.value
        if isinstance(value, int):
            return Batch(max(1, value // batch_size))
        if isinstance(value, Collection):
            return Batch(frozenset(max(1, -(-records // batch_size)) for records in value))
        return Batch(lambda batches: value(batches * batch_size))
