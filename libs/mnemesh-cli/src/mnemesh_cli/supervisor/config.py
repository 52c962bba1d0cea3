"""The settings of a mesh on this machine, and the lock of its data directory."""

import fcntl
import importlib.util
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from mnemesh_kit.config import TLS_PREFIX, ServerConfig, StartupError, TlsSettings, fixed, read_config
from mnemesh_kit.private_files import private_directory
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
    own = {variable: value for variable, value in env.items() if _is_needed(service(name), variable, env)}
    own |= {"MNEMESH_HOST": config.host, "MNEMESH_DATA_DIR": str(config.data_path)}
    if config.auth_key_file is not None:
        own["MNEMESH_AUTH_KEY_FILE"] = str(Path(config.auth_key_file).expanduser().absolute())
    for spec in SERVICES:
        own[spec.port_variable] = str(config.port(spec.name))
        own[spec.target_variable] = config.address(spec.name)
        if config.metrics_port is not None and spec.name == name:
            own[f"MNEMESH_{name.upper()}_METRICS_PORT"] = str(config.metrics_port + spec.metrics_offset)
    return own


def _is_needed(spec: ServiceSpec, variable: str, env: Mapping[str, str]) -> bool:
    if spec.settings is None:
        return True
    if variable.startswith("MNEMESH_"):
        names = (*(field.name for field in fields(ServerConfig)), *spec.settings)
        prefixes = (f"MNEMESH_{spec.name.upper()}_", "MNEMESH_")
        known = {f"{prefix}{name.upper()}" for prefix in prefixes for name in names}
        return variable in known or variable.removesuffix("_FILE") in known
    if variable in spec.variables:
        return True
    calls_hosts = spec.calls_hosts or bool(env.get("MNEMESH_OIDC_ISSUER"))
    if calls_hosts and variable.upper() in _PROXY_VARIABLES:
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


LOCK_NAME: Final = "mnemesh.lock"

_ACQUIRE_SECONDS: Final = 1.0
"""Long enough for a `lock_holder` of another process, which also takes the lock, to release it on a busy machine."""
_POLL_SECONDS: Final = 0.02
_LARGEST_STATUS: Final = 4096


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The status that the process with the lock wrote into the lock file."""

    pid: int
    ready: bool = False
    """True if all services of its mesh serve."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """The addresses of the services by name, at which clients on this machine reach them."""


class DataDirectoryLock:
    """An exclusive lock on a data directory. The kernel releases it when the process ends."""

    def __init__(self, file: int) -> None:
        """Wraps the descriptor of a lock file that this process has locked. Use `acquire`."""
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> "DataDirectoryLock":
        """Creates the directory if it is missing, and locks it.

        Raises:
            StartupError: the directory cannot be written, or another process holds the lock.
        """
        private_directory(directory)
        try:
            file = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartupError(
                f"The data directory {directory} cannot be written: {error.strerror}. "
                "Choose another with MNEMESH_DATA_DIR."
            ) from error
        if not _try_lock(file, _ACQUIRE_SECONDS):
            holder = lock_holder(directory)
            os.close(file)
            raise StartupError(
                f"Another mesh (pid {holder.pid if holder else 'unknown'}) is running on {directory}. "
                "Stop it with `mnemesh down`, or choose another directory with MNEMESH_DATA_DIR."
            )
        lock = cls(file)
        lock.write_status(ready=False)
        return lock

    def write_status(self, *, ready: bool, addresses: Mapping[str, str] | None = None) -> None:
        """Writes the status that `lock_holder` reads: this process, whether its services serve, and their addresses."""
        text = json.dumps(asdict(LockHolder(os.getpid(), ready, dict(addresses or {})))).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Releases the lock. The lock file stays."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def lock_holder(directory: Path) -> LockHolder | None:
    """Returns the process that holds the lock on a data directory, or None if no process does."""
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        if _try_lock(file):
            return None
        status = json.loads(os.pread(file, _LARGEST_STATUS, 0))
        # A later release may write more fields.
        return LockHolder(**{known.name: status[known.name] for known in fields(LockHolder) if known.name in status})
    except ValueError:
        return None  # the file is empty: its holder has not written its status yet, or is releasing the lock
    finally:
        os.close(file)


def _try_lock(file: int, timeout_seconds: float = 0.0) -> bool:
    """Tries to lock a file until the timeout. `lock_holder` of another process also holds a lock for an instant."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True
