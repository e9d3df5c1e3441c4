"""The `searcher` section: one model per search method."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator, model_serializer, model_validator

from detlab_master.core.expconf.base import Model, NonEmpty, NonNegative, Positive

Rungs: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Unit: TypeAlias = Literal["batches", "records", "epochs"]


class Length(Model):
    """An amount of training: exactly one unit."""

    batches: NonNegative | None = None
    records: NonNegative | None = None
    epochs: NonNegative | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> "Length":
        given = [unit for unit in ("batches", "records", "epochs") if getattr(self, unit) is not None]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of batches, records and epochs, but has {len(given)}")
        return self

    @property
    def unit(self) -> Unit:
        return "batches" if self.batches is not None else "records" if self.records is not None else "epochs"

    @property
    def units(self) -> int:
        """How many of the unit."""
        return next(n for n in (self.batches, self.records, self.epochs) if n is not None)

    @model_serializer
    def _only_the_unit(self) -> dict[str, int]:
        return {self.unit: self.units}


# An amount of training in a unit, or a plain number. (Names in angle brackets are left out of paths in
# messages.)
LengthOrUnits: TypeAlias = Annotated[
    Annotated[Length, Tag("<length>")] | Annotated[Positive, Tag("<units>")],
    Discriminator(lambda value: "<length>" if isinstance(value, (dict, Length)) else "<units>"),
]


class _Searcher(Model):
    metric: NonEmpty = Field(description="the validation metric that the search goes by")
    smaller_is_better: bool = Field(default=True, description="of the metric")
    source_trial_id: Positive | None = Field(
        default=None, description="every trial starts from this trial's latest checkpoint"
    )
    source_checkpoint_uuid: NonEmpty | None = Field(
        default=None, description="every trial starts from this checkpoint"
    )
    max_length: LengthOrUnits | None = Field(
        default=None,
        description="an amount of training for trials whose code sets none; without a unit it is an integer",
    )
    unit: Unit | None = Field(default=None, description="of a max_length without one")
    # How long a trial trains; only the halving methods need it, but trials of any may ask.
    time_metric: NonEmpty | None = Field(
        default=None,
        description="the metric that says how long a trial has trained, such as batches or epochs",
    )
    max_time: Positive | None = Field(
        default=None, description="how much of time_metric the longest trials train"
    )

    @field_validator("max_length")
    @classmethod
    def _positive(cls, value: Length | int | None) -> Length | int | None:
        if isinstance(value, Length) and value.units == 0:
            raise ValueError("must be greater than 0")
        return value


class SingleConfig(_Searcher):
    name: Literal["single"] = "single"


class RandomConfig(_Searcher):
    name: Literal["random"] = "random"
    max_trials: Positive = Field(description="how many trials to run")
    max_concurrent_trials: NonNegative = Field(default=16, description="at a time; 0: no limit")


class GridConfig(_Searcher):
    name: Literal["grid"] = "grid"
    max_concurrent_trials: NonNegative = Field(default=16, description="at a time; 0: no limit")


class _Halving(_Searcher):
    max_trials: Positive = Field(description="how many trials to run")
    max_concurrent_trials: NonNegative = Field(default=16, description="at a time; 0: no limit")
    divisor: float = Field(default=4, gt=1, description="of the trials at a rung, one in so many goes on")
    stop_once: bool | None = None  # of old; trials are always stopped, never promoted

    def _rungs(self) -> int:
        """The most rungs that a trial may climb."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _rungs_are_numbers(self) -> "_Halving":
        try:
            self.divisor ** (self._rungs() - 1)
        except OverflowError:
            raise ValueError(
                f"divisor {self.divisor:g} to the power of {self._rungs() - 1} "
                "(the rungs above the lowest) is too large"
            ) from None
        return self


class AsyncHalvingConfig(_Halving):
    name: Literal["async_halving"] = "async_halving"
    num_rungs: Rungs = Field(description="at how many points trials are compared")

    def _rungs(self) -> int:
        return self.num_rungs


class AdaptiveAshaConfig(_Halving):
    name: Literal["adaptive_asha"] = "adaptive_asha"
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        default="standard", description="how early trials are stopped"
    )
    max_rungs: Rungs = Field(default=5, description="at how many points trials are compared, at most")
    bracket_rungs: list[Rungs] = Field(
        default_factory=list, description="rungs of each bracket, instead of what mode says"
    )

    def _rungs(self) -> int:
        return max([self.max_rungs, *self.bracket_rungs])


SearcherConfig: TypeAlias = SingleConfig | RandomConfig | GridConfig | AsyncHalvingConfig | AdaptiveAshaConfig

AnySearcher: TypeAlias = Annotated[SearcherConfig, Field(discriminator="name")]
