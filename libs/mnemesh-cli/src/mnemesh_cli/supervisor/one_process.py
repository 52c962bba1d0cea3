"""The process that runs several services of a mesh: `python -m mnemesh_cli.supervisor.one_process blocks recall …`.

Calls between them need no sockets. Each service listens on its port, as in a process of its own.
"""

# ruff: noqa: E402  (the libraries are imported after the two settings of the process)
import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

# The modules of the services stay in memory: collections while they are loaded cost time and find nothing. The server
# enables the collector when it is ready.
gc.disable()
# structlog has a format for terminals that uses rich, if it is installed. A service does not use it.
_modules: dict[str, Any] = sys.modules
if "rich" not in _modules:
    _modules["rich"] = None
    import structlog  # noqa: F401

    del _modules["rich"]

from mnemesh_cli.supervisor.config import MeshConfig, service_environment
from mnemesh_kit import run
from mnemesh_kit.config import StartupError
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.services import service


def main(names: Sequence[str]) -> int:
    """Runs services, which start in the order of the names. Returns the exit code of the process; see `run.run`."""
    try:
        config, local = MeshConfig.from_env(), LocalServers()
        return run.run(*(load_service(name, config, local) for name in names), local=local)
    except StartupError as error:
        return run.report(error)


def load_service(name: str, mesh: MeshConfig, local: LocalServers) -> run.Service:
    """Returns what runs a service that calls those of `local` without sockets. Its settings are in the environment."""
    package = service(name).package
    config = import_module(f"{package}.config").Config.from_env(service_environment(name, mesh, os.environ))
    assemble = import_module(f"{package}.wiring").assemble
    shared = {"local": local} if "local" in signature(assemble).parameters else {}
    return partial(assemble, config, **shared), config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
