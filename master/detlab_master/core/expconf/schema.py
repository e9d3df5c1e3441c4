"""The experiment configuration, version 0, as it is after everything has been filled in.

The model is the schema: defaults, types and ranges are here, rules between keys in `validate.py`.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from detlab_master.core.expconf.base import Model, NonEmpty, NonNegative, Positive
from detlab_master.core.expconf.environment import EnvironmentConfig
from detlab_master.core.expconf.resources import BindMount, PbsConfig, ResourcesConfig, SlurmConfig
from detlab_master.core.expconf.searcher import AnySearcher, Length
from detlab_master.core.expconf.storage import AnyStorage
from detlab_master.core.log_policies import compiled


class LogPolicy(Model):
    """What a line of a trial's log means.

    Without a pattern it only switches off the inherited policy of its name.
    """

    name: NonEmpty | None = None
    pattern: NonEmpty | None = None
    action: Literal["cancel_retries", "exclude_node"] | None = None

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                compiled(pattern)
            except ValueError as error:
                raise ValueError(f"must be a regular expression (RE2): {error}") from None
        return pattern

    @model_validator(mode="after")
    def _says_something(self) -> "LogPolicy":
        if self.name is None and (self.pattern is None or self.action is None):
            raise ValueError("a log policy without a name needs a pattern and an action")
        return self


DEFAULT_LOG_POLICIES: list[dict[str, Any]] = [
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"},
]


class RetentionPolicy(Model):
    log_retention_days: Annotated[int, Field(ge=-1, le=32767)] | None = None  # -1: for ever


class Reproducibility(Model):
    experiment_seed: Annotated[int, Field(ge=0, lt=2**32)]


class Profiling(Model):
    enabled: bool = False
    begin_on_batch: NonNegative = 0
    end_after_batch: NonNegative | None = None
    sync_timings: bool = True

    @model_validator(mode="after")
    def _in_order(self) -> "Profiling":
        if self.end_after_batch is not None and self.end_after_batch < self.begin_on_batch:
            raise ValueError(
                f"end_after_batch, {self.end_after_batch}, must not be less than begin_on_batch, "
                f"{self.begin_on_batch}"
            )
        return self


class Optimizations(Model):
    """Of TensorFlow and Horovod days; the harness still reads the first three."""

    aggregation_frequency: Positive = 1
    average_aggregated_gradients: bool = True
    gradient_compression: bool = False
    average_training_metrics: bool = True
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    tensor_fusion_threshold: int = 64
    tensor_fusion_cycle_time: int = 1
    auto_tune_tensor_fusion: bool = False
    grad_updates_size_file: str | None = None


class Webhooks(Model):
    webhook_id: list[int] = Field(default_factory=list)
    webhook_name: list[str] = Field(default_factory=list)
    exclude: bool = False


class Integrations(Model):
    pachyderm: dict[str, Any] | None = None
    webhooks: Webhooks | None = None


# A set, in the order in which it was written.
Labels: TypeAlias = Annotated[list[NonEmpty], AfterValidator(lambda labels: list(dict.fromkeys(labels)))]

# A command line for the shell, or an argument vector. (Names in angle brackets are left out of paths in
# messages.)
Entrypoint: TypeAlias = Annotated[
    Annotated[NonEmpty, Tag("<line>")] | Annotated[list[str], Field(min_length=1), Tag("<argv>")],
    Discriminator(lambda value: "<argv>" if isinstance(value, list) else "<line>"),
]


class ExperimentConfig(Model):
    name: NonEmpty
    description: str | None = None
    labels: Labels = Field(default_factory=list)
    data: dict[str, Any] = Field(default_factory=dict)
    workspace: str = ""
    project: str = ""
    entrypoint: Entrypoint | None = None
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    searcher: AnySearcher = Field(description="how to search: name and metric at least")
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    checkpoint_storage: AnyStorage = Field(
        description="where checkpoints go; the cluster has no default for it"
    )
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    bind_mounts: list[BindMount] = Field(default_factory=list)
    max_restarts: NonNegative = 5
    log_policies: list[LogPolicy] = Field(default_factory=list)
    retention_policy: RetentionPolicy | None = None
    reproducibility: Reproducibility
    profiling: Profiling = Field(default_factory=Profiling)
    preemption_timeout: NonNegative = 3600  # seconds
    perform_initial_validation: bool = False
    debug: bool = False
    integrations: Integrations | None = None
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    pbs: PbsConfig = Field(default_factory=PbsConfig)
    scheduling_unit: Positive = 100  # batches
    min_validation_period: Length = Length(batches=0)
    min_checkpoint_period: Length = Length(batches=0)
    records_per_epoch: NonNegative = 0
    optimizations: Optimizations = Field(default_factory=Optimizations)
    # Of old: accepted, never used.
    data_layer: None = None
    tensorboard_storage: None = None
    security: None = None
    internal: None = None
