"""Sealed secrets, and the variables that are stored sealed."""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from mnemesh_kit.auth import read_keys
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock

_VERSION: Final = b"\x01"
_MARK_BYTES: Final = 4
_NONCE_BYTES: Final = 12


class SecretsKeyMissing(FailedPrecondition):
    """The server has no key to seal secrets with."""


class SecretUnreadable(FailedPrecondition):
    """A stored secret is damaged, or was sealed with a key that the server does not have."""


class SecretBox:
    """Seals and opens secrets.

    The first key of the file seals; all keys open. To replace a key, put the new one before it.

    Args:
        key_file: The operator's file of keys, one per line, each of at least 32 characters. It is read once.
        created_at: The path of a key that this process creates for its first secret; None if several processes share
            the database, because each would create its own.

    Raises:
        ConfigError: The operator's file cannot be read or has no valid key.
    """

    def __init__(self, key_file: str | None, created_at: Path | None = None) -> None:
        self._created_at = created_at
        self._keys: tuple[bytes, ...] = () if key_file is None else _derived(read_keys(key_file))

    @classmethod
    def of_service(cls, key_file: str | None, database: str, directory: Path) -> Self:
        """Returns the box of a service with this database URL and data directory. Raises ConfigError."""
        return cls(key_file, directory / "secrets.key" if database.startswith("sqlite") else None)

    def seal(self, secret: str, context: str) -> bytes:
        """Returns the encrypted secret. It can be opened only with the same `context`, such as the id of its record.

        Raises:
            SecretsKeyMissing: There is no key, and this process cannot create one.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key, nonce = self._sealing_key(), secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + _mark(key) + nonce + AESGCM(key).encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Returns the decrypted secret.

        Raises:
            SecretUnreadable: The key is missing, the context is another one, or the data is damaged.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        mark, rest = sealed[1 : 1 + _MARK_BYTES], sealed[1 + _MARK_BYTES :]
        for key in self._known_keys():
            if sealed[:1] == _VERSION and _mark(key) == mark:
                try:
                    return AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], context.encode()).decode()
                except InvalidTag:
                    break
        raise SecretUnreadable("A stored secret cannot be read with the keys of this server.")

    def resealed(self, sealed: bytes, context: str) -> bytes:
        """Returns the secret encrypted with the first key: `sealed` itself if it is already.

        Raises:
            SecretUnreadable: See `open`.
        """
        if sealed[:1] == _VERSION and sealed[1 : 1 + _MARK_BYTES] == _mark(self._sealing_key()):
            return sealed
        return self.seal(self.open(sealed, context), context)

    def fingerprint(self, secret: str) -> str:
        """Returns a text that identifies the secret and reveals nothing of it. Raises SecretsKeyMissing."""
        return hmac.new(self._sealing_key(), b"fingerprint\0" + secret.encode(), hashlib.sha256).hexdigest()

    @property
    def marks(self) -> frozenset[str]:
        """A fingerprint of each key. The keys cannot be derived from them."""
        return frozenset(_mark(key).hex() for key in self._known_keys())

    def _sealing_key(self) -> bytes:
        keys = self._known_keys()
        if not keys and self._created_at is not None:
            _create_key(self._created_at)
            keys = self._known_keys()
        if not keys:
            raise SecretsKeyMissing(
                "This server has no key to store secrets with. Its operator must set MNEMESH_SECRETS_KEY_FILE."
            )
        return keys[0]

    def _known_keys(self) -> tuple[bytes, ...]:
        if not self._keys and self._created_at is not None and self._created_at.exists():
            self._keys = _derived(read_keys(str(self._created_at)))
        return self._keys


@dataclass
class Resealing:
    """The report of an encryption of stored secrets with the first key."""

    records: int = 0
    """The records that were written."""
    unreadable: int = 0
    """The records with a secret that no key can decrypt. They stay."""

    @contextmanager
    def of_record(self) -> Iterator[None]:
        """Counts a record whose secrets cannot be decrypted, and ends its block."""
        try:
            yield
        except (SecretUnreadable, SecretsKeyMissing):
            self.unreadable += 1

    def __str__(self) -> str:
        """Returns a line of the report of a maintenance."""
        text = f"records with secrets encrypted again: {self.records}"
        return f"{text}; without the key: {self.unreadable}" if self.unreadable else text


def _derived(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    # This text is part of the stored format. With another one, no stored secret could be opened.
    return tuple(HKDF(SHA256(), 32, salt=None, info=b"mnemesh secrets at rest").derive(line) for line in lines)


def _mark(key: bytes) -> bytes:
    """Returns bytes that identify a key and reveal nothing of it."""
    return hashlib.sha256(b"mark\0" + key).digest()[:_MARK_BYTES]


def _create_key(path: Path) -> None:
    """Writes a new key that only this user can read. The first writer wins. A crash leaves a complete key or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # without the key, sealed secrets are lost
        finally:
            os.close(directory)
    finally:
        draft.unlink()


MAX_VARIABLES: Final = 100
MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 30_000
"""The kernel passes at most 128 kB to a program as one variable, and a character has up to four bytes."""
MAX_TOTAL_CHARS: Final = 200_000

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    {
        *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "TMPDIR", "TMP", "TEMP", "IFS", "ENV", "BASH_ENV"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_OPTIONS", "NODE_PATH", "GCONV_PATH"),
        *("LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "OPENSSL_CONF", "OPENSSL_MODULES", "PERL5LIB", "PERL5OPT"),
        *("RUBYLIB", "RUBYOPT", "SSLKEYLOGFILE"),
    }
)
_RESERVED_BEGINNINGS: Final = ("LD_", "DYLD_", "PYTHON", "MNEMESH_", "MALLOC_", "NPM_CONFIG_", "UV_", "PIP_")


@dataclass(frozen=True, slots=True)
class SecretVariable:
    """A variable of a tool or an agent."""

    name: str
    sealed: bytes | None = field(repr=False)
    """The encrypted value. None keeps the stored one; no stored variable has None."""
    updated_at: datetime
    """The time of the last change of the value."""


class SecretVariables:
    """Encrypts each value for the one owner that it belongs to, and decrypts it for an execution."""

    def __init__(self, box: SecretBox, clock: Clock) -> None:
        self._box = box
        self._clock = clock

    def fingerprint(self, value: str) -> str:
        """Returns a text that identifies a value and reveals nothing of it. Raises SecretsKeyMissing."""
        return self._box.fingerprint(value)

    def sealed(self, owner: str, values: Mapping[str, str | None]) -> tuple[SecretVariable, ...]:
        """Returns the variables with these values, which `require_valid_variables` has checked.

        Args:
            owner: The id of the tool or the agent.
            values: The values by name. None keeps the stored value.

        Raises:
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        now = self._clock.now()
        return tuple(
            SecretVariable(name, None if value is None else self._box.seal(value, _context(owner, name)), now)
            for name, value in values.items()
        )

    def merged(
        self, owner: str, stored: Iterable[SecretVariable], changes: Sequence[SecretVariable], place: str
    ) -> tuple[SecretVariable, ...]:
        """Returns the variables of an owner after they were replaced by `changes`.

        A variable whose value does not change stays as it is stored.

        Args:
            owner: The id of the tool or the agent.
            stored: Its variables.
            changes: All variables that it has from now on.
            place: The field of the request, for errors.

        Raises:
            InvalidArgument: A variable has no value, and none is stored under its name.
        """
        known = {variable.name: variable for variable in stored}

        def kept(change: SecretVariable) -> SecretVariable:
            before = known.get(change.name)
            if change.sealed is None:
                if before is None:
                    raise InvalidArgument(f"{place}: {change.name} has no value. Set one.", field=place)
                return before
            return change if before is None or self._differ(owner, before, change) else before

        return tuple(kept(change) for change in changes)

    def opened(self, owner: str, variables: Iterable[SecretVariable]) -> dict[str, str]:
        """Returns the values by name.

        Raises:
            SecretUnreadable: A value cannot be decrypted with the keys of this server.
        """
        return {
            variable.name: self._box.open(variable.sealed or b"", _context(owner, variable.name))
            for variable in variables
        }

    def resealed(self, owner: str, variables: Sequence[SecretVariable]) -> tuple[SecretVariable, ...]:
        """Returns the variables encrypted with the first key. Raises SecretUnreadable."""
        return tuple(
            replace(variable, sealed=self._box.resealed(variable.sealed or b"", _context(owner, variable.name)))
            for variable in variables
        )

    def _differ(self, owner: str, one: SecretVariable, other: SecretVariable) -> bool:
        try:
            return self.opened(owner, [one]) != self.opened(owner, [other])
        except SecretUnreadable:
            return True


def require_valid_variables(values: Mapping[str, str | None], place: str) -> None:
    """Checks the environment variables of a request.

    Args:
        values: The values by name; None for a value that is not part of the request.
        place: The field of the request.

    Raises:
        InvalidArgument: A name or a value breaks its rule, or there are too many.
    """
    if len(values) > MAX_VARIABLES:
        raise InvalidArgument(f"{place} must have at most {MAX_VARIABLES} entries.", field=place)
    for name, value in values.items():
        _require_valid_name(name, place)
        if value is not None:
            require_text(value, f"{place}.{name}", max_chars=MAX_VALUE_CHARS)
    if sum(len(name) + len(value or "") for name, value in values.items()) > MAX_TOTAL_CHARS:
        raise InvalidArgument(f"{place} must be at most {MAX_TOTAL_CHARS:,} characters together.", field=place)


def _require_valid_name(name: str, place: str) -> None:
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{place}: {name[:64]!a} is not the name of an environment variable. Use at most {MAX_NAME_CHARS} letters, "
            "digits and underscores, and no digit at the beginning.",
            field=place,
        )
    if name.upper() in _RESERVED or name.upper().startswith(_RESERVED_BEGINNINGS):
        raise InvalidArgument(
            f"{place}: {name} changes how programs start and must not be set. Use another name.", field=place
        )


def _context(owner: str, name: str) -> str:
    return f"variable/{owner}/{name}"
