"""One typed settings object per service: flags, then environment (`PPD_...`), then a TOML file.

Secrets come from the environment alone: a field made with `secret()` has no flag and is refused in a file,
so that it shows up neither in a process list nor in a repository.
"""

import os
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSuppress,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ppd.runtime import otlp
from ppd.runtime.endpoints import check_etcd, check_nats, redacted

S = TypeVar("S", bound="CommandSettings")


def _split(value: Any) -> Any:
    """`a,b` and `["a,b"]` as `["a", "b"]`: flags may be repeated or comma-separated."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    return [item.strip() for part in parts for item in str(part).split(",") if item.strip()]


def _etcd(value: list[str]) -> list[str]:
    for endpoint in value:
        check_etcd(endpoint)
    return value


def _nats(value: list[str]) -> list[str]:
    for endpoint in value:
        check_nats(endpoint)
    return value


def _some(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("name one endpoint at least")
    return value


CommaList = Annotated[list[str], NoDecode, BeforeValidator(_split)]
EtcdEndpoints = Annotated[CommaList, AfterValidator(_etcd)]
NatsEndpoints = Annotated[CommaList, AfterValidator(_nats)]
Needed = AfterValidator(_some)
Secret = CliSuppress[str]
_SECRET: dict[str, Any] = {"secret": True}


def secret(description: str) -> Any:
    """A field that only the environment can set; annotate it as `Secret`."""
    return Field("", description=description, json_schema_extra=dict(_SECRET), repr=False)


class _TomlFile(PydanticBaseSettingsSource):
    """The file named by `--config` or PPD_CONFIG; its keys are the fields' names."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config") or os.environ.get("PPD_CONFIG")
        if not path:
            return {}
        try:
            with open(path, "rb") as file:
                values = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error
        known = self.settings_cls.model_fields
        for key in values:
            if key not in known:
                raise SettingsError(f"{path}: there is no setting {key!r}")
            if known[key].json_schema_extra == _SECRET:
                raise SettingsError(
                    f"{path}: {key} is a secret: set PPD_{key.upper()} in the environment instead"
                )
        return values


class CommandSettings(BaseSettings):
    """Settings of any command: flags, environment, and a file."""

    model_config = SettingsConfigDict(
        env_prefix="PPD_",
        populate_by_name=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,  # argparse would print what it does not understand, secrets and all
        extra="ignore",
    )

    config: Path | None = Field(None, description="TOML file with settings (the flags' names, with _ for -)")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _TomlFile(settings_cls)


class ServiceSettings(CommandSettings):
    """What every service needs to find the others."""

    namespace: str = Field(
        "default", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="keeps clusters on shared servers apart"
    )
    etcd: Annotated[EtcdEndpoints, Needed] = Field(
        ["127.0.0.1:2379"], description="etcd endpoints, host:port, comma-separated"
    )
    nats: Annotated[NatsEndpoints, Needed] = Field(
        ["nats://127.0.0.1:4222"], description="NATS servers, comma-separated"
    )
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error"
    )
    log_json: bool = Field(False, description="log lines as JSON")
    otlp_endpoint: str = Field(
        "",
        validation_alias=AliasChoices("otlp_endpoint", "PPD_OTLP_ENDPOINT"),
        description="where spans go (OTLP), such as http://127.0.0.1:4317; empty: as OTEL_EXPORTER_OTLP_…"
        " in the environment says (docs/traces.md)",
    )


class TracedSettings(ServiceSettings):
    """Of a service that exports spans."""

    @property
    def export(self) -> otlp.OtlpExport | None:
        """How spans are exported; None: not at all."""
        return otlp.resolve(self.otlp_endpoint)

    @model_validator(mode="after")
    def _can_export(self) -> Self:
        otlp.resolve(self.otlp_endpoint)
        return self


def _refuse_secrets(kind: type[CommandSettings], argv: list[str]) -> None:
    """A secret on the command line would be seen in every process list."""
    for name, field in kind.model_fields.items():
        flag = "--" + name.replace("_", "-")
        if field.json_schema_extra == _SECRET and any(arg.partition("=")[0] == flag for arg in argv):
            raise SettingsError(f"{flag} is a secret: set PPD_{name.upper()} in the environment instead")


def _explained(kind: type[CommandSettings], item: Any) -> str:
    """One validation error. What was given is shown only where it can hold no secret."""
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return str(message)
    name, given = str(item["loc"][0]), repr(item["input"])
    field = kind.model_fields.get(name)
    is_secret = field is not None and field.json_schema_extra == _SECRET
    got = "" if is_secret or "@" in given else f" (got {given})"
    return f"{'--' + name.replace('_', '-') if name.islower() else name}: {message}{got}"


def load(kind: type[S], argv: list[str], prog: str) -> S:
    """The settings of one service or command from `argv`, environment and file.

    Prints what is wrong and exits with 2 where a value cannot be used; `--help` exits with 0.
    """
    kind.model_config["cli_prog_name"] = prog
    try:
        _refuse_secrets(kind, argv)
        return CliApp.run(kind, cli_args=argv)
    except ValidationError as error:
        for item in error.errors():
            print(f"{prog}: {_explained(kind, item)}", file=sys.stderr)  # noqa: T201
    except SettingsError as error:
        message = redacted(str(error.__cause__ or error)).removeprefix("error parsing CLI: ")
        print(f"{prog}: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
