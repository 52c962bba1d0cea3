"""A value made of PEM files, which is made again when one of them is replaced; the certificates in use."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from mnemesh_kit.config import ConfigError
from mnemesh_kit.private_files import EventLog, warn_of_readable_key
from mnemesh_kit.tls.certificates import Certificate, read_certificate

T = TypeVar("T")

_log = EventLog("mnemesh.tls")


class Reloaded(Generic[T]):
    """A value made of files. Any thread may use it."""

    def __init__(self, files: Sequence[str | None], load: Callable[[], T]) -> None:
        """Makes the value.

        Args:
            files: the files; None stands for one that is not configured.
            load: returns the value. It raises ConfigError if a file is wrong.

        Raises:
            ConfigError: of `load`.
        """
        self._files = [Path(file).expanduser() for file in files if file is not None]
        self._load = load
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self.value = load()

    def refresh(self) -> bool:
        """Makes the value again if a file has changed. Returns whether it is a new one.

        If the new files are wrong, the value stays, and the reason is logged once.
        """
        with self._lock:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            try:
                self.value = self._load()
            except ConfigError as error:
                _log.warning("certificate_reload_failed", error=str(error))
                return False
            return True

    def _stamp_now(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in self._files)


class CertificateFiles:
    """The certificate of this process, from its files. Each that is in use counts for `seconds_left`."""

    def __init__(self, cert_file: str, key_file: str | None, prefix: str) -> None:
        """Reads the files; see `read_certificate`, which also has the arguments and errors.

        Args:
            cert_file: the certificate chain.
            key_file: its key.
            prefix: of the names of the settings.
        """
        self._prefix = prefix
        self.path = cert_file
        self._key_file = key_file
        self._reloaded = Reloaded((cert_file, key_file), self._read)
        _in_use.add(self)

    @property
    def current(self) -> Certificate:
        """The newest certificate."""
        return self._reloaded.value

    def refresh(self) -> bool:
        """Reads the files again if one has changed. Returns whether there is a new certificate."""
        if not self._reloaded.refresh():
            return False
        self.log("certificate_replaced")
        return True

    def log(self, event: str) -> None:
        """Logs what the certificate is for and when it expires, as a warning if that is soon."""
        certificate = self.current
        write = _log.warning if certificate.is_ending else _log.info
        names, days_left = list(certificate.names), certificate.days_left
        write(event, setting=f"{self._prefix}_CERT_FILE", path=self.path, names=names, days_left=days_left)

    def _read(self) -> Certificate:
        return read_certificate(self.path, self._key_file, self._prefix)

    def warn_of_readable_key(self) -> None:
        """Logs a warning if every user of the machine can read the key."""
        if self._key_file is not None:
            warn_of_readable_key(self._key_file)


_in_use: weakref.WeakSet[CertificateFiles] = weakref.WeakSet()


def report_certificates() -> bool:
    """Logs the certificates that this process uses. Returns whether there are any."""
    files = {each.path: each for each in list(_in_use)}
    for each in files.values():
        each.log("certificate_loaded")
        each.warn_of_readable_key()
    return bool(files)


def seconds_left() -> float:
    """Returns the seconds until the first of the certificates that this process uses expires; infinity without any."""
    return min((each.current.ends for each in list(_in_use)), default=float("inf")) - time.time()


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status: Any = os.stat(file)  # noqa: PTH116  (called for each handshake)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
