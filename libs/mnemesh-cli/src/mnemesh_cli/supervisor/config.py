"""The settings of `mnemesh up`, and the environment variables that it passes to every service."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from mnemesh_kit.config import TLS_PREFIX, ServerConfig, StartupError, TlsSettings, fixed, read_config
from mnemesh_kit.services import SERVICES, ServiceSpec, ports_from_env, service

_SYSTEM_VARIABLES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "TZ", "TZDIR", "LANG", "LANGUAGE", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT"),
    }
)
_SYSTEM_PREFIXES: Final = ("LC_", "PYTHON", "MALLOC_", "GRPC_", "OTEL_", "PG", "COVERAGE_")
"""Variables of the interpreter, the C library, gRPC, OpenTelemetry and PostgreSQL's client."""
_PROXY_VARIABLES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE"})
_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (addresses to connect to, not to bind)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The settings of a mesh on one machine.

    Each field except `ports` and `tls` is read from MNEMESH_<FIELD>. `service_environment` passes other variables to
    the services that need them.
    """

    data_dir: str = "data"
    """The directory of all databases, indexes and logs. It is created if it is missing."""
    host: str = "127.0.0.1"
    """The address on which the services listen. Any address but loopback requires `auth_key_file`."""
    ports: Mapping[str, int] = field(default_factory=dict, metadata={"environment": False})
    """The ports of services by name, from MNEMESH_<SERVICE>_PORT; a service without one has its default port."""
    metrics_port: int | None = None
    """The port of the orchestrator's Prometheus metrics. The other services use the ports after it."""
    auth_key_file: str | None = None
    embedder: str = "mnemesh/wordllama-256"
    """The embedder of archives that do not name one."""
    tls: TlsSettings = field(default=TlsSettings(), metadata={"environment": False})
    """The files with which the supervisor and the command line connect to the services."""
    shutdown_grace_seconds: float = 10.0
    """The time that running calls of a service may take to finish. It is killed 5 seconds later."""
    start_seconds: float = fixed(900.0)
    """The time after which a start fails although all processes still run. One that exits ends the start at once."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "MeshConfig":
        """Reads the settings from the environment.

        Raises:
            ConfigError: a variable has an invalid value. The message is one line and names the variable.
        """
        config = read_config(cls, env)
        return replace(config, ports=ports_from_env(env), tls=TlsSettings.from_env(env))

    def require_authorities(self) -> None:
        """Raises StartupError if the services have certificates that nothing here can verify."""
        if self.tls.cert_file is not None and self.tls.ca_file is None:
            raise StartupError(
                f"{TLS_PREFIX}_CA_FILE must be set with {TLS_PREFIX}_CERT_FILE: the services call each other."
            )

    @property
    def stop_seconds(self) -> float:
        """The time after which a service that does not stop is killed."""
        return self.shutdown_grace_seconds + 5

    @property
    def data_path(self) -> Path:
        """Returns `data_dir` as an absolute path."""
        return Path(self.data_dir).expanduser().absolute()

    def port(self, name: str) -> int:
        """Returns the port of a service."""
        return self.ports.get(name, service(name).port)

    def address(self, name: str) -> str:
        """Returns the address at which clients on this machine reach a service, `host:port`."""
        host = _LOOPBACK_OF.get(self.host, self.host)
        return f"[{host}]:{self.port(name)}" if ":" in host else f"{host}:{self.port(name)}"

    @property
    def addresses(self) -> dict[str, str]:
        """Returns the address of each service by name."""
        return {spec.name: self.address(spec.name) for spec in SERVICES}


def service_environment(name: str, config: MeshConfig, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of a service's process: what it needs of `env`, and the mesh's directory and addresses.

    A service does not get the settings and the keys of another one.
    """
    own = {variable: value for variable, value in env.items() if _is_needed(service(name), variable)}
    own |= {"MNEMESH_HOST": config.host, "MNEMESH_DATA_DIR": str(config.data_path)}
    if config.auth_key_file is not None:
        own["MNEMESH_AUTH_KEY_FILE"] = str(Path(config.auth_key_file).expanduser().absolute())
    for spec in SERVICES:
        own[spec.port_variable] = str(config.port(spec.name))
        own[spec.target_variable] = config.address(spec.name)
        if config.metrics_port is not None and spec.name == name:
            own[f"MNEMESH_{name.upper()}_METRICS_PORT"] = str(config.metrics_port + spec.metrics_offset)
    return own


def _is_needed(spec: ServiceSpec, variable: str) -> bool:
    if spec.settings is None:
        return True
    if variable.startswith("MNEMESH_"):
        names = (*(field.name for field in fields(ServerConfig)), *spec.settings)
        prefixes = (f"MNEMESH_{spec.name.upper()}_", "MNEMESH_")
        known = {f"{prefix}{name.upper()}" for prefix in prefixes for name in names}
        return variable in known or variable.removesuffix("_FILE") in known
    if variable in spec.variables:
        return True
    if spec.calls_hosts and variable.upper() in _PROXY_VARIABLES:
        return True
    return variable.upper() in _SYSTEM_VARIABLES or variable.startswith(_SYSTEM_PREFIXES)


def service_module(name: str) -> str:
    """Returns the module that runs a service (`python -m <module>`), without importing it.

    Raises:
        StartupError: the package of the service is not installed.
    """
    package = service(name).package
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    if not any(Path(folder, "__main__.py").is_file() for folder in folders or ()):
        raise StartupError(f"The service {name} is not installed: there is no package {package}.")
    return package


def mesh_config(data_dir: str | None) -> MeshConfig:
    """Returns the settings of the mesh on this machine.

    Args:
        data_dir: the value of `--data-dir`, or None to use MNEMESH_DATA_DIR.

    Raises:
        ConfigError: a variable has an invalid value.
    """
    return MeshConfig.from_env({**os.environ, **({"MNEMESH_DATA_DIR": data_dir} if data_dir else {})})
