"""Revoked tokens: a text file beside the key file, which every service reads again when it has changed.

Each line has a kind, an id, and the time of the revocation in seconds since 1970, UTC:

- `token <jti> <time>`: the token with this id.
- `subject <id> <time>`: all tokens of a subject that were issued before.
- `organization <id> <time>`: all tokens of an organization that were issued before.

An empty line, and one that begins with `#`, say nothing.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.config import ConfigError
from mnemesh_kit.private_files import EventLog

CHECK_SECONDS: Final = 2.0
"""How often a service looks whether the file has changed."""
_KINDS: Final = ("token", "subject", "organization")
_log = EventLog("mnemesh.auth")


def revocation_file(key_file: str) -> Path:
    """Returns the path of the file that belongs to a key file."""
    return Path(f"{key_file}.revoked").expanduser()


def revoke(path: Path, kind: str, id_: str, time: float) -> None:
    """Adds an entry to the file, which is created for its owner only."""
    path.touch(mode=0o600)
    with path.open("a+b") as file:
        file.seek(0)
        text = file.read()
        separator = b"" if not text or text.endswith(b"\n") else b"\n"
        file.write(separator + f"{kind} {id_} {time:.3f}\n".encode())  # one write: a reader sees all of it, or nothing
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Revocations:
    """What the file says."""

    entries: dict[tuple[str, str], float] = field(default_factory=dict)
    """The last time of each entry, by its kind and the id."""

    @classmethod
    def read(cls, path: Path) -> "Revocations":
        """Returns the entries of a file; none if it does not exist.

        Raises:
            ConfigError: the file cannot be read, or a line is not an entry.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"The file of revoked tokens {path} cannot be read: {error}.") from error
        entries: dict[tuple[str, str], float] = {}
        for entry, time in _parsed(path, text):
            entries[entry] = max(time, entries.get(entry, 0.0))
        return cls(entries)

    def revokes(self, caller: Principal, token_id: str | None, issued_at: float) -> bool:
        """Returns whether a token is revoked.

        Args:
            caller: whom it names.
            token_id: its id; None without one.
            issued_at: when it was issued; 0 if it does not say.
        """
        if not self.entries:
            return False
        before = max(
            self.entries.get(("subject", caller.subject_id), 0.0),
            self.entries.get(("organization", caller.organization_id), 0.0),
        )
        return issued_at < before or (token_id is not None and ("token", token_id) in self.entries)


class RevocationFile:
    """The entries of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            ConfigError: the file cannot be read, or a line is not an entry.
        """
        self._path = path
        self._version = self._stat()
        self._failed: tuple[int, ...] | None = None
        """The version that could not be read."""
        self.current = Revocations.read(path)

    def has_changed(self) -> bool:
        """Reads the file again if it has changed. A file that cannot be read changes nothing, and is logged."""
        version = self._stat()
        if version == self._version:
            return False
        try:
            self.current = Revocations.read(self._path)
        except ConfigError as error:
            # It is tried again: rights of the file, or files that the process may open, do not change its version.
            if version != self._failed:
                _log.warning("revocations_not_read", reason=str(error))
            self._failed = version
            return False
        self._version = version
        self._failed = None
        _log.info("revocations_read", entries=len(self.current.entries))
        return True

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size


def _parsed(path: Path, text: str) -> Iterator[tuple[tuple[str, str], float]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            kind, id_, time = words
            moment = float(time)
        except ValueError:
            kind, id_, moment = "", "", 0.0
        if kind not in _KINDS or not isfinite(moment):
            raise ConfigError(f"Line {number} of {path} is not of the form token, subject or organization, id, time.")
        yield (kind, id_), moment
