"""The `environment` section: what surrounds a task's process."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from detlab_master.core.expconf.base import Model, NonEmpty

DEFAULT_IMAGE = "determinedai/pytorch-ngc-dev:0736b6d"
DEFAULT_ROCM_IMAGE = "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d"

Port = Annotated[int, Field(ge=1, le=65535)]


def _named(variable: str) -> str:
    if not variable.partition("=")[0]:
        raise ValueError("must be NAME=VALUE, or NAME for the agent's own value")
    return variable


Variable = Annotated[str, AfterValidator(_named), Field(json_schema_extra={"pattern": "^[^=]"})]


class Images(Model):
    cpu: NonEmpty = DEFAULT_IMAGE
    cuda: NonEmpty = DEFAULT_IMAGE
    rocm: NonEmpty = DEFAULT_ROCM_IMAGE


class Variables(Model):
    """By kind of slot; each NAME=VALUE, or NAME for the agent's own value."""

    cpu: list[Variable] = Field(default_factory=list)
    cuda: list[Variable] = Field(default_factory=list)
    rocm: list[Variable] = Field(default_factory=list)


class ProxyPort(Model):
    proxy_port: Port = Field(description="the port on which the task listens")
    proxy_tcp: bool = False
    unauthenticated: bool = False
    default_service_id: bool = False


class RegistryAuth(Model):
    username: str = ""
    password: str = ""
    auth: str = ""
    email: str = ""
    serveraddress: str = ""
    identitytoken: str = ""
    registrytoken: str = ""


class EnvironmentConfig(Model):
    image: Images = Field(default_factory=Images, description="of the container, by kind of slot")
    environment_variables: Variables = Field(default_factory=Variables, description="by kind of slot")
    proxy_ports: list[ProxyPort] = Field(default_factory=list, description="on which a task serves")
    ports: dict[str, Port] = Field(default_factory=dict, description="by name")
    force_pull_image: bool = Field(default=False, description="even where the agent has it")
    registry_auth: RegistryAuth | None = Field(default=None, description="for the image")
    add_capabilities: list[str] = Field(default_factory=list, description="of Linux")
    drop_capabilities: list[str] = Field(default_factory=list, description="of Linux")
    pod_spec: dict[str, Any] | None = None

    @field_validator("pod_spec")
    @classmethod
    def _no_identity(cls, spec: dict[str, Any] | None) -> dict[str, Any] | None:
        metadata = (spec or {}).get("metadata")
        for key in ("name", "namespace"):
            if isinstance(metadata, dict) and metadata.get(key) is not None:
                raise ValueError(f"must not set metadata.{key}: the master names its pods")
        return spec
