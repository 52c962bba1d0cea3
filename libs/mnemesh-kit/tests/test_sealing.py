"""Secrets at rest: contexts, rotation of keys, and the generated key file."""

from pathlib import Path

import pytest
from mnemesh_kit.config import ConfigError
from mnemesh_kit.secret_variables import SecretBox, SecretsKeyMissing, SecretUnreadable

OLD, NEW = "the-old-key-" + "0" * 32, "the-new-key-" + "1" * 32
SECRET = "sk-canary-0123456789"


def box(path: Path, *keys: str) -> SecretBox:
    path.write_text("\n".join(keys) + "\n")
    return SecretBox(str(path))


def test_secret_opens_only_in_its_context(tmp_path: Path) -> None:
    ours = box(tmp_path / "keys", OLD)
    sealed = ours.seal(SECRET, "org/provider/api_key")
    assert SECRET.encode() not in sealed
    assert ours.open(sealed, "org/provider/api_key") == SECRET
    assert ours.seal(SECRET, "org/provider/api_key") != sealed, "equal secrets have different ciphertexts"
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong, place in (
        (sealed, "org/other/api_key"),
        (damaged, "org/provider/api_key"),
        (b"", "org/provider/api_key"),
    ):
        with pytest.raises(SecretUnreadable) as refused:
            ours.open(wrong, place)
        assert SECRET not in str(refused.value)


def test_key_is_rotated_by_prepending_a_new_one(tmp_path: Path) -> None:
    before = box(tmp_path / "keys", OLD)
    sealed = before.seal(SECRET, "place")
    during = box(tmp_path / "keys", NEW, OLD)
    assert during.open(sealed, "place") == SECRET
    sealed_again = during.seal(SECRET, "place")
    after = box(tmp_path / "keys", NEW)
    assert after.open(sealed_again, "place") == SECRET
    with pytest.raises(SecretUnreadable):
        after.open(sealed, "place")


def test_key_file_is_created_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    first, second = SecretBox(None, path), SecretBox(None, path)
    assert not path.exists()
    sealed = first.seal(SECRET, "place")
    assert second.open(sealed, "place") == SECRET
    assert path.stat().st_mode & 0o777 == 0o600
    assert second.fingerprint(SECRET) == first.fingerprint(SECRET) != first.fingerprint(SECRET + "x")
    assert [file.name for file in tmp_path.iterdir()] == ["secrets.key"]


def test_sealing_without_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretsKeyMissing):
        SecretBox(None).seal(SECRET, "place")
    with pytest.raises(ConfigError):
        SecretBox(str(tmp_path / "none"))
    with pytest.raises(ConfigError):
        box(tmp_path / "keys", "short")
