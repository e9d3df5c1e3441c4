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

    name: NonEmpty | None = Field(
        default=None, description="by which a policy is overridden, and shown when it matches"
    )
    pattern: NonEmpty | None = Field(
        default=None, description="an RE2 regular expression that a line matches"
    )
    action: Literal["cancel_retries", "exclude_node"] | None = Field(
        default=None, description="never run the trial again after a failure, or not on that node"
    )

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
    log_retention_days: Annotated[int, Field(ge=-1, le=32767)] | None = Field(
        default=None, description="-1: for ever"
    )


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
    name: NonEmpty = Field(description="for people")
    description: str | None = Field(default=None, description="for people")
    labels: Labels = Field(default_factory=list, description="for finding it again")
    data: dict[str, Any] = Field(
        default_factory=dict,
        description="anything that the training code wants to know; it reads it as user_data",
    )
    workspace: str = Field(default="", description="the project's workspace; without both, the first project")
    project: str = Field(default="", description="where the experiment is filed")
    entrypoint: Entrypoint | None = Field(
        default=None, description="the command that a trial runs, or module:TrialClass"
    )
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict, description="constants, and ranges to search"
    )
    searcher: AnySearcher = Field(description="how to search: name and metric at least")
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig, description="what a trial runs on")
    environment: EnvironmentConfig = Field(
        default_factory=EnvironmentConfig, description="what surrounds a trial's process"
    )
    checkpoint_storage: AnyStorage = Field(
        description="where checkpoints go; the cluster has no default for it"
    )
    checkpoint_policy: Literal["best", "all", "none"] = Field(
        default="best",
        description="whether to save after a validation that is the best so far, after every one, or after none",
    )
    bind_mounts: list[BindMount] = Field(
        default_factory=list, description="folders of the host that trials see"
    )
    max_restarts: NonNegative = Field(default=5, description="how often a trial that failed is started again")
    log_policies: list[LogPolicy] = Field(
        default_factory=list, description="what lines of a trial's log mean"
    )
    retention_policy: RetentionPolicy | None = Field(default=None, description="how long logs are kept")
    reproducibility: Reproducibility = Field(description="the seed of the search and of its trials")
    profiling: Profiling = Field(default_factory=Profiling, description="of system metrics")
    preemption_timeout: NonNegative = Field(
        default=3600, description="seconds in which a trial that is to leave its slots saves a checkpoint"
    )
    perform_initial_validation: bool = Field(default=False, description="validate before the first batch")
    debug: bool = Field(default=False, description="more in the log")
    integrations: Integrations | None = Field(default=None, description="with other systems")
    slurm: SlurmConfig = Field(default_factory=SlurmConfig, description="of clusters run by Slurm")
    pbs: PbsConfig = Field(default_factory=PbsConfig, description="of clusters run by PBS")
    scheduling_unit: Positive = Field(default=100, description="batches between reports of a TrialClass")
    min_validation_period: Length = Field(
        default=Length(batches=0),
        description="how much a TrialClass trains between validations; 0: validate at the end",
    )
    min_checkpoint_period: Length = Field(
        default=Length(batches=0),
        description="how much a TrialClass trains between checkpoints; 0: save at the end",
    )
    records_per_epoch: NonNegative = Field(default=0, description="of older releases")
    optimizations: Optimizations = Field(
        default_factory=Optimizations,
        description="of older releases; aggregation_frequency and average_aggregated_gradients still count",
    )
    # Of old: accepted, never used.
    data_layer: None = None
    tensorboard_storage: None = None
    security: None = None
    internal: None = None
