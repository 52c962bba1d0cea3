"""Secrets at rest: each sealed with AES-256-GCM under a key that is not in the database."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mnemesh_kit.auth import read_keys

from mnemesh_orchestrator.errors import SecretsKeyMissing, SecretUnreadable

_VERSION: Final = b"\x01"
_MARK_BYTES: Final = 4
_NONCE_BYTES: Final = 12


class SecretBox:
    """Seals and opens secrets. The first key of its file seals, all open: a key is replaced by one put before it.

    Args:
        key_file: the operator's file of keys, one a line, each of 32 characters or more; read now.
        made_at: where a key is kept that this process makes at its first secret, and nobody else knows; None where
            several processes would each make their own.

    Raises:
        ConfigError: the operator's file cannot be read, or holds no good key.
    """

    def __init__(self, key_file: str | None, made_at: Path | None = None) -> None:
        self._made_at = made_at
        self._keys: tuple[bytes, ...] = () if key_file is None else _derived(read_keys(key_file))

    def seal(self, secret: str, place: str) -> bytes:
        """The secret as it may be stored; it can be opened at this place only.

        Raises:
            SecretsKeyMissing: there is no key to seal with, and none may be made.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key, nonce = self._sealing_key(), secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + _mark(key) + nonce + AESGCM(key).encrypt(nonce, secret.encode(), place.encode())

    def open(self, sealed: bytes, place: str) -> str:
        """The secret.

        Raises:
            SecretUnreadable: it was sealed with a key that is not here, at another place, or is damaged.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        mark, rest = sealed[1 : 1 + _MARK_BYTES], sealed[1 + _MARK_BYTES :]
        for key in self._known_keys():
            if sealed[:1] == _VERSION and _mark(key) == mark:
                try:
                    return AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], place.encode()).decode()
                except InvalidTag:
                    break
        raise SecretUnreadable("A stored secret cannot be read with the keys of this server.")

    def fingerprint(self, secret: str) -> str:
        """What tells this secret from others, and tells nothing of it to who has not the key. Raises as `seal`."""
        return hmac.new(self._sealing_key(), b"fingerprint\0" + secret.encode(), hashlib.sha256).hexdigest()

    def _sealing_key(self) -> bytes:
        keys = self._known_keys()
        if not keys and self._made_at is not None:
            _make(self._made_at)
            keys = self._known_keys()
        if not keys:
            raise SecretsKeyMissing(
                "This server has no key to store secrets with; its operator sets MNEMESH_SECRETS_KEY_FILE."
            )
        return keys[0]

    def _known_keys(self) -> tuple[bytes, ...]:
        if not self._keys and self._made_at is not None and self._made_at.exists():
            self._keys = _derived(read_keys(str(self._made_at)))
        return self._keys


def _derived(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    # Part of the stored format: another text would make every stored secret unreadable.
    return tuple(HKDF(SHA256(), 32, salt=None, info=b"engram secrets at rest").derive(line) for line in lines)


def _mark(key: bytes) -> bytes:
    """Tells which key sealed, without a hint at it."""
    return hashlib.sha256(b"mark\0" + key).digest()[:_MARK_BYTES]


def _make(path: Path) -> None:
    """Writes a new key that only this user may read. Whoever is first wins, and a crash leaves a whole key or none."""
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
            os.fsync(directory)  # what was sealed with it is worth nothing without it
        finally:
            os.close(directory)
    finally:
        draft.unlink()
