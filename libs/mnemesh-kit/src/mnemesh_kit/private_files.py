"""Access to the files of a mesh for their owner only: databases, indexes, logs, keys, sockets and exports."""

import logging
import os
import stat
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.config import StartupError


class EventLog:
    """Writes events with their fields: to structlog where a process has configured it, else to the standard library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **fields: Any) -> None:
        """Writes an event that a person may want to know."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Writes an event that a person should do something about."""
        self._write(logging.WARNING, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **fields)
            return
        shown = " ".join((event, *(f"{name}={value}" for name, value in fields.items())))
        logging.getLogger(self._name).log(level, "%s", shown)


UMASK: Final = 0o077
_OTHERS: Final = 0o077
_SECRETS_OF_CONTAINERS: Final = "/run/secrets"
_STORED: Final = ("*.db", "*.db-*", "*.key", "*.lock", "*.owner", "*-index", "logs", "system_prompts")
"""The names of what a mesh stores in its data directory. Other files there are not changed."""
_log = EventLog("mnemesh.files")


def make_new_files_private() -> None:
    """Makes the files, directories and sockets that this process and its children create accessible to their owner."""
    os.umask(UMASK)


def private_directory(directory: Path) -> bool:
    """Creates a data directory for its owner only, or takes the access of other users from an existing one.

    A directory that belongs to another user is not changed, but logged.

    Returns:
        Whether the access to an existing directory was changed.

    Raises:
        StartupError: the directory cannot be written.
    """
    try:
        before = os.umask(UMASK)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        finally:
            os.umask(before)
        with os.scandir(directory) as entries:
            stored = [entry.path for entry in entries if any(fnmatch(entry.name, name) for name in _STORED)]
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise StartupError(
            f"The data directory {directory} cannot be written: {error.strerror}. Choose another with MNEMESH_DATA_DIR."
        ) from error
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & _OTHERS:
        return False
    changed = [_restrict(path) for path in (str(directory), *stored)]
    if changed[0]:
        _log.warning("data_directory_access_restricted", data_dir=str(directory), mode_before=f"{mode:04o}")
    else:
        _log.warning("data_directory_open_to_other_users", data_dir=str(directory), mode=f"{mode:04o}")
    return changed[0]


def warn_of_readable_key(path: str) -> None:
    """Logs a warning if every user of the machine can read a file of keys. A missing file is reported elsewhere.

    In a container, the only users are those of the service, and the engine mounts secrets so that each can read them.
    """
    if Path(path).is_relative_to(_SECRETS_OF_CONTAINERS):
        return
    try:
        mode = stat.S_IMODE(Path(path).expanduser().stat().st_mode)
    except OSError:
        return
    if mode & stat.S_IROTH:
        _log.warning("key_file_readable_by_every_user", path=path, mode=f"{mode:04o}")


def _restrict(path: str) -> bool:
    """Takes the access of other users. Returns False for a link, and for a file of another user."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return False
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)  # noqa: PTH101  (the path of a directory entry)
    except OSError:
        return False
    return True
