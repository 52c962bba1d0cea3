"""One mesh per data directory: the lock that says so, and what the holder tells about itself."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.config import StartupError

from mnemesh_client.supervisor.config import ROOMS, MeshConfig

_LOCK: Final = "mnemesh.lock"


class PortTaken(StartupError):
    """Somebody else has a port of the mesh."""


class DataDirectoryLock:
    """The hold on a data directory; it ends with the process that has it, however that ends."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def claim(cls, directory: Path) -> DataDirectoryLock:
        """Makes the directory where it is missing, and takes hold of it.

        Raises:
            StartupError: it cannot be written, or another instance has it.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartupError(
                f"The data directory {directory} cannot be written: {error.strerror}; "
                "choose another with MNEMESH_DATA_DIR."
            ) from error
        if not _lock(file, patience=0.2):
            holder = lock_holder(directory) or {}
            os.close(file)
            raise StartupError(
                f"Another `mnemesh up` (pid {holder.get('pid', 'unknown')}) runs on {directory}; "
                "stop it, or choose another directory with MNEMESH_DATA_DIR."
            )
        instance = cls(file)
        instance.tell(ready=False)
        return instance

    def tell(self, *, ready: bool) -> None:
        """Leaves word for others: who holds the directory, and whether its services answer."""
        text = json.dumps({"pid": os.getpid(), "ready": ready}).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Lets go of the directory."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """What the instance on a directory tells: `pid` and `ready`; None where there is none."""
    try:
        file = os.open(directory / _LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        if _lock(file):
            return None
        return dict(json.loads(os.pread(file, 4096, 0) or b"{}"))
    finally:
        os.close(file)


def require_free_ports(config: MeshConfig) -> None:
    """Holds the mesh's ports against what else listens here.

    Raises:
        PortTaken: names the port and how to choose another.
        StartupError: a port or the host can never be had.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for room in ROOMS:
        port, variable = config.port(room), f"MNEMESH_{room.upper()}_PORT"
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((config.host, port))
        except OverflowError as error:
            raise StartupError(f"{port} is no port; choose one below 65536 with {variable}.") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"Port {port} on {config.host} is already taken; choose another for {room} with {variable}."
                ) from error
            raise StartupError(f"Cannot listen on {config.host}:{port}: {error.strerror or error}.") from error


def _lock(file: int, patience: float = 0.0) -> bool:
    """Tries to take the lock; with patience, outlasts somebody who only looks who has it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
