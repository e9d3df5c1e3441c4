"""The `checkpoint_storage` section: one model per kind of storage."""

from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from detlab_master.core.expconf.base import Model, NonEmpty, NonNegative
from detlab_master.core.expconf.resources import AbsolutePath, Propagation

WAY_UP = r"(^|/)\.\.(/|$)"


def _no_way_up(prefix: str) -> str:
    if ".." in prefix.split("/"):
        raise ValueError("must not contain '..'")
    return prefix


Prefix: TypeAlias = Annotated[
    str, AfterValidator(_no_way_up), Field(json_schema_extra={"not": {"pattern": WAY_UP}})
]


class _Storage(Model):
    save_experiment_best: NonNegative = Field(
        default=0,
        description="checkpoints to keep of the whole experiment, the best by the searcher's metric",
    )
    save_trial_best: NonNegative = Field(
        default=1, description="checkpoints to keep of each trial, the best by the searcher's metric"
    )
    save_trial_latest: NonNegative = Field(
        default=1, description="checkpoints to keep of each trial, the latest"
    )


class SharedFsStorage(_Storage):
    type: Literal["shared_fs"] = "shared_fs"
    host_path: AbsolutePath = Field(
        description="the absolute path of the shared folder on every agent's host"
    )
    storage_path: Annotated[NonEmpty, Field(json_schema_extra={"not": {"pattern": WAY_UP}})] | None = Field(
        default=None, description="a folder in host_path"
    )
    propagation: Propagation = "rprivate"

    @model_validator(mode="after")
    def _inside(self) -> "SharedFsStorage":
        if self.storage_path is None:
            return self
        root, path = PurePosixPath(self.host_path), PurePosixPath(self.storage_path)
        if ".." in path.parts:
            raise ValueError(f"storage_path {self.storage_path!r} must not contain '..'")
        if path.is_absolute() and not path.is_relative_to(root):
            raise ValueError(
                f"storage_path {self.storage_path!r} must lie inside host_path {self.host_path!r}"
            )
        return self


class DirectoryStorage(_Storage):
    type: Literal["directory"] = "directory"
    container_path: AbsolutePath = Field(
        description="the absolute path of the folder in every task's file system"
    )


class S3Storage(_Storage):
    type: Literal["s3"] = "s3"
    bucket: NonEmpty = Field(description="the bucket's name")
    access_key: str | None = None
    secret_key: str | None = None
    endpoint_url: str | None = None
    prefix: Prefix | None = None


class GcsStorage(_Storage):
    type: Literal["gcs"] = "gcs"
    bucket: NonEmpty = Field(description="the bucket's name")
    prefix: Prefix | None = None


class AzureStorage(_Storage):
    type: Literal["azure"] = "azure"
    container: NonEmpty = Field(description="the container's name")
    connection_string: str | None = None
    account_url: str | None = None
    credential: str | None = None

    @model_validator(mode="after")
    def _one_way_in(self) -> "AzureStorage":
        if (self.connection_string is None) == (self.account_url is None):
            raise ValueError("needs exactly one of connection_string and account_url")
        if self.credential is not None and self.account_url is None:
            raise ValueError("credential goes with account_url only")
        return self


StorageConfig: TypeAlias = SharedFsStorage | DirectoryStorage | S3Storage | GcsStorage | AzureStorage

AnyStorage: TypeAlias = Annotated[StorageConfig, Field(discriminator="type")]
