"""The check that the ports of a mesh are free before its services start."""

from __future__ import annotations

import errno
import socket

from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.config import StartupError
from mnemesh_kit.services import SERVICES


class PortInUseError(StartupError):
    """Another process listens on a port of the mesh."""


def require_free_ports(config: MeshConfig) -> None:
    """Checks that each service of the mesh can listen on its port.

    Raises:
        PortInUseError: another process listens on a port. The message names the port and the variable to change.
        StartupError: the mesh cannot listen on a port for another reason.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for spec in SERVICES:
        port = config.port(spec.name)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((config.host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"Port {port} on {config.host} is already in use. "
                    f"Choose another port for {spec.name} with {spec.port_variable}."
                ) from error
            raise StartupError(f"Cannot listen on {config.host}:{port}: {error.strerror or error}.") from error
