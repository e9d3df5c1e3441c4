"""The `checkpoint_storage` section: one model per kind of storage."""

from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from detlab_master.core.expconf.base import Model, NonEmpty, NonNegative
from detlab_master.core.expconf.resources import Propagation


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _no_way_up(prefix: str | None) -> str | None:
    if prefix is not None and ".." in prefix.split("/"):
        raise ValueError("must not contain '..'")
    return prefix


class _Storage(Model):
    save_experiment_best: NonNegative = 0
    save_trial_best: NonNegative = 1
    save_trial_latest: NonNegative = 1


class SharedFsStorage(_Storage):
    type: Literal["shared_fs"] = "shared_fs"
    host_path: NonEmpty = Field(description="the absolute path of the shared folder on every agent's host")
    storage_path: NonEmpty | None = None
    propagation: Propagation = "rprivate"

    _check_host_path = field_validator("host_path")(_absolute)

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
    container_path: NonEmpty = Field(
        description="the absolute path of the folder in every task's file system"
    )

    _check_container_path = field_validator("container_path")(_absolute)


class S3Storage(_Storage):
    type: Literal["s3"] = "s3"
    bucket: NonEmpty = Field(description="the bucket's name")
    access_key: str | None = None
    secret_key: str | None = None
    endpoint_url: str | None = None
    prefix: str | None = None

    _check_prefix = field_validator("prefix")(_no_way_up)


class GcsStorage(_Storage):
    type: Literal["gcs"] = "gcs"
    bucket: NonEmpty = Field(description="the bucket's name")
    prefix: str | None = None

    _check_prefix = field_validator("prefix")(_no_way_up)


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
