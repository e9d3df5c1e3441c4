"""The `resources`, `bind_mounts`, `slurm` and `pbs` sections: what a trial runs on."""

from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from detlab_master.core.expconf.base import Model, NonEmpty, NonNegative, Positive

Priority: TypeAlias = Annotated[int, Field(ge=1, le=99)]  # 1 goes first
Propagation: TypeAlias = Literal["private", "rprivate", "shared", "rshared", "slave", "rslave"]


def _some_of_mrw(mode: str) -> str:
    if not mode or set(mode) - set("mrw"):
        raise ValueError("must be some of the letters m, r and w")
    return mode


DeviceMode: TypeAlias = Annotated[
    str, AfterValidator(_some_of_mrw), Field(json_schema_extra={"pattern": "^[mrw]+$"})
]


class Device(Model):
    host_path: NonEmpty = Field(description="the device on the agent's host")
    container_path: NonEmpty = Field(description="where the task sees it")
    mode: DeviceMode = "mrw"


class ResourcesConfig(Model):
    slots_per_trial: NonNegative = Field(
        default=1, description="slots of one trial; 0: none, a task for the CPU"
    )
    resource_pool: str = Field(default="", description="where trials run; without it the cluster's default")
    max_slots: NonNegative | None = Field(
        default=None, description="of all trials of the experiment together"
    )
    weight: Annotated[float, Field(gt=0)] = Field(
        default=1, description="its share where the scheduler shares"
    )
    priority: Priority | None = Field(default=None, description="1 goes first, 99 last")
    shm_size: NonNegative | None = Field(default=None, description="bytes of shared memory")
    is_single_node: bool | None = Field(default=None, description="never spread a trial over several nodes")
    devices: list[Device] = Field(default_factory=list, description="of the host")
    native_parallel: bool = Field(default=False, description="of older releases")
    agent_label: str | None = None  # of old, ignored


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _not_the_work_dir(path: str) -> str:
    if str(PurePosixPath(path)) == ".":
        raise ValueError("must not be the work dir itself; name a folder in it, or an absolute path")
    return path


AbsolutePath: TypeAlias = Annotated[
    NonEmpty, AfterValidator(_absolute), Field(json_schema_extra={"pattern": "^/"})
]


class BindMount(Model):
    host_path: AbsolutePath = Field(description="the absolute path on the agent's host")
    container_path: Annotated[
        NonEmpty,
        AfterValidator(_not_the_work_dir),
        Field(json_schema_extra={"not": {"pattern": r"^(\./*)+$"}}),
    ] = Field(description="where the task sees it")
    read_only: bool = False
    propagation: Propagation = "rprivate"


class SlurmConfig(Model):
    slots_per_node: Positive | None = None
    gpu_type: str | None = None
    sbatch_args: list[str] = Field(default_factory=list)


class PbsConfig(Model):
    slots_per_node: Positive | None = None
    pbsbatch_args: list[str] = Field(default_factory=list)
