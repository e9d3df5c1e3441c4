"""The `resources`, `bind_mounts`, `slurm` and `pbs` sections: what a trial runs on."""

from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator

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
    slots_per_trial: NonNegative = 1
    resource_pool: str = ""
    max_slots: NonNegative | None = None
    weight: Annotated[float, Field(gt=0)] = 1
    priority: Priority | None = None
    shm_size: NonNegative | None = None  # bytes
    is_single_node: bool | None = None
    devices: list[Device] = Field(default_factory=list)
    native_parallel: bool = False
    agent_label: str | None = None  # of old, ignored


class BindMount(Model):
    host_path: NonEmpty = Field(description="the absolute path on the agent's host")
    container_path: NonEmpty = Field(description="where the task sees it")
    read_only: bool = False
    propagation: Propagation = "rprivate"

    @field_validator("host_path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        if not PurePosixPath(path).is_absolute():
            raise ValueError("must be an absolute path")
        return path

    @field_validator("container_path")
    @classmethod
    def _not_the_work_dir(cls, path: str) -> str:
        if str(PurePosixPath(path)) == ".":
            raise ValueError("must not be the work dir itself; name a folder in it, or an absolute path")
        return path


class SlurmConfig(Model):
    slots_per_node: Positive | None = None
    gpu_type: str | None = None
    sbatch_args: list[str] = Field(default_factory=list)


class PbsConfig(Model):
    slots_per_node: Positive | None = None
    pbsbatch_args: list[str] = Field(default_factory=list)
