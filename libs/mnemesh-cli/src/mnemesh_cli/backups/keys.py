"""The keys of secrets in a backup, encrypted with a passphrase."""

import base64
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from mnemesh_cli.backups.archive import Manifest
from mnemesh_cli.backups.places import BackupError
from mnemesh_cli.backups.stores import KEY_HOLDERS, MeshStores
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.secret_variables import SecretBox

_COST: Final = 1 << 15
"""The cost of scrypt: 32 MB and some 0.1 s for each passphrase that is tried."""
_BLOCK: Final = 8
_CREATED: Final = "secrets.key"


def key_marks(stores: MeshStores) -> tuple[str, ...]:
    """Returns what identifies the keys of secrets that the services have. A key file that cannot be read has none."""
    marks = set[str]()
    for name in KEY_HOLDERS:
        config: Any = stores.services[name].config
        with suppress(ConfigError):
            marks |= SecretBox.of_service(config.secrets_key_file, config.database, config.data_path).marks
    return tuple(sorted(marks))


def sealed_keys(stores: MeshStores, passphrase: str) -> dict[str, str]:
    """Returns the keys of the services that store secrets, encrypted.

    Raises:
        StartupError: a key file cannot be read.
    """
    from cryptography.fernet import Fernet  # noqa: PLC0415  (only with keys)

    paths = {name: path for name in KEY_HOLDERS if (path := _key_path(stores, name)) is not None and path.exists()}
    salt = secrets.token_hex(16)
    lines = msgspec.json.encode({name: _lines(path) for name, path in paths.items()})
    return {"salt": salt, "sealed": Fernet(_derived(passphrase, salt)).encrypt(lines).decode()}


def opened_keys(manifest: Manifest, passphrase: str) -> dict[str, list[str]]:
    """Returns the keys of each service. Raises BackupError if there are none, or the passphrase is another one."""
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

    if manifest.keys is None:
        raise BackupError(f"The backup {manifest.id} has no keys. It was made without --with-key.")
    try:
        text = Fernet(_derived(passphrase, manifest.keys["salt"])).decrypt(manifest.keys["sealed"])
    except InvalidToken:
        raise BackupError("The passphrase does not decrypt the keys of the backup.") from None
    keys: dict[str, list[str]] = msgspec.json.decode(text)
    return keys


def add_keys(stores: MeshStores, keys: dict[str, list[str]]) -> None:
    """Adds keys to the key files of the services, after those that they have: all keys of a file decrypt.

    Raises:
        BackupError: a service has no key file, or it cannot be written.
    """
    for name, lines in keys.items():
        path = _key_path(stores, name)
        if path is None:
            raise BackupError("MNEMESH_SECRETS_KEY_FILE must be set: a service on PostgreSQL creates no key.")
        present = _lines(path) if path.exists() else []
        missing = [line for line in lines if line not in present]
        if missing:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
                    file.write("".join(f"{line}\n" for line in missing))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise BackupError(f"The keys cannot be added to {path}: {error.strerror}.") from error


def _key_path(stores: MeshStores, name: str) -> Path | None:
    config: Any = stores.services[name].config
    if config.secrets_key_file:
        return Path(config.secrets_key_file).expanduser()
    return config.data_path / _CREATED if config.database.startswith("sqlite") else None


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise StartupError(f"The key file {path} cannot be read: {error.strerror}.") from error


def _derived(passphrase: str, salt: str) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt  # noqa: PLC0415

    derived = Scrypt(salt=salt.encode(), length=32, n=_COST, r=_BLOCK, p=1).derive(passphrase.encode())
    return base64.urlsafe_b64encode(derived)
