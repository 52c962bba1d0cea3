"""Settings as frozen dataclasses. Only a service's `config.py` reads the environment, once."""

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, get_origin, get_type_hints

T = TypeVar("T")
MAX_DAYS: Final = 36_500
"""The largest number of days: a century."""


class StartupError(Exception):
    """The process cannot start. The message is the one line that its operator reads."""


class ConfigError(StartupError):
    """A setting is missing or invalid."""


def fixed(value: T) -> T:
    """Returns the default of a field that no variable sets. Tests give it another value."""
    return dataclasses.field(default=value, metadata={"environment": False})


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The settings of every service. The service's Config extends it."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback needs `auth_key_file`."""
    port: int = 0
    """The port to listen on; 0 chooses a free one."""
    data_dir: str = "data"
    """The directory of the embedded stores. It is created if it is missing, readable by its owner only."""
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int | None = None
    """The port on `host` that serves Prometheus metrics over HTTP. Unset: no metrics."""
    auth_key_file: str | None = None
    """A file of HS256 keys, one per line: the first signs, all verify. Unset: no authentication, loopback only."""
    oidc_issuer: str | None = None
    """The URL of an OpenID Connect issuer whose tokens are accepted, too. It needs `auth_key_file`."""
    oidc_audience: str | None = None
    """The audience that these tokens must have."""
    oidc_jwks_url: str | None = None
    """The URL of the issuer's keys. Unset: the one that its configuration names."""
    oidc_subject_claim: str = "sub"
    """The claim that identifies the caller."""
    oidc_organization_claim: str | None = None
    """The claim that identifies the caller's organization. Unset: all belong to the default organization."""
    oidc_role_claim: str = "roles"
    """The claim with the caller's roles: a list, or words in a text. A path with dots names an inner claim."""
    oidc_roles: tuple[str, ...] = ()
    """The values of this claim that mean a role: `staff=writer`. Unset: `reader`, `writer` and `admin`."""
    oidc_agents_claim: str | None = None
    """The claim with the ids of the agents to which a token is limited; `*` for all. Unset: no token is limited."""
    grpc_tls_cert_file: str | None = None
    """A PEM file with the certificate chain of this process: for its gRPC server, and for its calls to other services.
    Unset: gRPC is not encrypted."""
    grpc_tls_key_file: str | None = None
    """A PEM file with the key of the certificate."""
    grpc_tls_ca_file: str | None = None
    """A PEM file with the authorities of the services that this one calls. Unset: the public authorities."""
    grpc_tls_client_ca_file: str | None = None
    """A PEM file with the authorities of callers. If set, each caller must present a certificate."""
    grpc_tls_server_name: str | None = None
    """The name that the certificates of called services must have. Unset: the host of the address."""
    audit_retention_days: float = 400.0
    """Entries of the service's audit log that are older are deleted; 0 keeps all."""
    max_concurrent_calls: int = 2000
    """How many calls of clients may be open at the same time. Calls of other services are not counted."""
    shutdown_grace_seconds: float = 10.0
    """How long running calls may take to finish after SIGTERM."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Returns the settings from the environment; see `read_config`."""
        return read_config(cls, env)

    @property
    def data_path(self) -> Path:
        """The absolute path of `data_dir`."""
        return Path(self.data_dir).expanduser().absolute()


TLS_PREFIX: Final = "MNEMESH_GRPC_TLS"
"""The prefix of the variables of these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The PEM files of a process. Without any of them, its connections are not encrypted."""

    cert_file: str | None = None
    """The certificate chain of this process. Servers present it to callers, callers to servers that require one."""
    key_file: str | None = None
    """The private key of the certificate."""
    ca_file: str | None = None
    """The authorities that sign the certificates of the servers. Unset: the public authorities."""
    client_ca_file: str | None = None
    """Servers only: the authorities that sign the certificates of callers. If set, each caller must present one."""
    server_name: str | None = None
    """Callers only: the name that the certificates of servers must have. Unset: the host of the address."""

    @property
    def is_configured(self) -> bool:
        """Returns whether connections use TLS."""
        return self.cert_file is not None or self.ca_file is not None

    @classmethod
    def of(cls, config: ServerConfig) -> "TlsSettings":
        """Returns the settings of a service."""
        return cls(**{field.name: getattr(config, f"grpc_tls_{field.name}") for field in fields(cls)})

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, process: str = "client") -> "TlsSettings":
        """Returns the settings of a caller: MNEMESH_<PROCESS>_GRPC_TLS_<FIELD>, or else MNEMESH_GRPC_TLS_<FIELD>."""
        prefixes = (TLS_PREFIX.replace("_", f"_{process.upper()}_", 1), TLS_PREFIX)
        values = {
            field.name: next((env[name] for each in prefixes if env.get(name := f"{each}_{field.name.upper()}")), None)
            for field in fields(cls)
            if field.name != "client_ca_file"
        }
        return cls(**values)


class FileEnvironment(Mapping[str, str]):
    """The variables of an environment. The value of one that is unset or empty can be in a file: NAME_FILE names it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def __getitem__(self, name: str) -> str:
        """Returns a value; that of a file without the space around it.

        Raises:
            KeyError: there is none.
            ConfigError: the file cannot be read.
        """
        path = self._env.get(f"{name}_FILE")
        if self._env.get(name) or not path:
            return self._env[name]
        try:
            return Path(path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{name}_FILE {path} cannot be read: {reason}.") from error

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the variables themselves."""
        return iter(self._env)

    def __len__(self) -> int:
        """Returns the number of variables."""
        return len(self._env)


def read_config(cls: type[T], env: Mapping[str, str] = os.environ) -> T:
    """Returns an instance of the settings dataclass `cls`, filled from the environment.

    The field `data_dir` of a Config in the package `mnemesh_blocks` is read from MNEMESH_BLOCKS_DATA_DIR or, if that is
    unset or empty, from MNEMESH_DATA_DIR. With _FILE after its name, a variable names a file with the value. Tuples and
    lists are comma-separated; booleans are true/false/1/0. A field with `environment: False` in its metadata is not
    read: its class fills it by other rules.

    Raises:
        ConfigError: a variable is missing or has an invalid value. The message is one line that names the variable.
    """
    env = FileEnvironment(env)
    service = service_of(cls).upper()
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if not field.metadata.get("environment", True):
            variable = field.metadata.get("variable")
            if variable is not None and env.get(variable):
                values[field.name] = _converted(variable, env[variable], hints[field.name])
            continue
        names = (f"MNEMESH_{service}_{field.name.upper()}", f"MNEMESH_{field.name.upper()}")
        name = next((candidate for candidate in names if env.get(candidate)), None)
        if name is not None:
            values[field.name] = _converted(name, env[name], hints[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{names[1]} must be set.")
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def service_of(cls: type) -> str:
    """Returns the service that a class belongs to: `blocks` for a class of the package `mnemesh_blocks`."""
    return cls.__module__.partition(".")[0].removeprefix("mnemesh_")


def _converted(name: str, text: str, kind: Any) -> Any:
    import msgspec  # noqa: PLC0415  (services only: a client does not have it)

    raw: Any = [part.strip() for part in text.split(",") if part.strip()] if get_origin(kind) in (tuple, list) else text
    try:
        value = msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} has an invalid value: {error}.") from error
    # A negative age would delete what is new. None of the settings has a meaning below 0.
    most = MAX_DAYS if name.endswith("_DAYS") else sys.float_info.max
    if isinstance(value, (int, float)) and not 0 <= value <= most:
        limits = f"from 0 to {most}" if most == MAX_DAYS else "from 0"
        raise ConfigError(f"{name} has an invalid value: {text} is not a number {limits}.")
    return value
