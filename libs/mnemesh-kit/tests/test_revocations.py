"""Revoked tokens: the file beside the key file, and the services that read it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mnemesh_kit import auth
from mnemesh_kit.auth import AUTHORIZATION_KEY, TokenAuthenticator, TokenMint, mint_token
from mnemesh_kit.call_context import Principal, Role
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import Unauthenticated
from mnemesh_kit.ids import new_id
from mnemesh_kit.revocations import RevocationFile, Revocations, revoke
from mnemesh_testkit.fakes.issuer import FakeIssuer

from .test_oidc import Verifier

KEY = b"k" * 32
ADA, BOB = (Principal(new_id("org"), new_id("user")) for _ in range(2))
COLLEAGUE = Principal(ADA.organization_id, new_id("user"))
DAY = 86_400


@pytest.fixture(autouse=True)
def every_call_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services look at the file with each call instead of every two seconds."""
    monkeypatch.setattr(auth, "CHECK_SECONDS", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.revoked"


def service(path: Path) -> TokenAuthenticator:
    return TokenAuthenticator((KEY,), "blocks", RevocationFile(path))


async def is_valid(verifier: TokenAuthenticator, token: str) -> bool:
    metadata = {AUTHORIZATION_KEY: f"Bearer {token}"}
    try:
        return (verifier.known(metadata) or await verifier.principal(metadata)) is not None
    except Unauthenticated as error:
        if "revoked" not in error.message:
            raise
        return False


async def test_revoked_token_is_refused_by_running_and_new_services(path: Path) -> None:
    running = service(path)
    lost, kept = (mint_token(KEY, ADA, DAY, token_id=id_) for id_ in ("lost", "kept"))
    assert [await is_valid(running, token) for token in (lost, kept)] == [True, True]
    revoke(path, "token", "lost", time.time())
    for verifier in (running, service(path)):
        assert [await is_valid(verifier, token) for token in (lost, kept)] == [False, True]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("kind", "id_", "refused"),
    [("subject", ADA.subject_id, [ADA]), ("organization", ADA.organization_id, [ADA, COLLEAGUE])],
    ids=["subject", "organization"],
)
async def test_tokens_that_were_issued_before_are_refused(
    path: Path, kind: str, id_: str, refused: list[Principal]
) -> None:
    running = service(path)
    tokens = {each: mint_token(KEY, each, DAY) for each in (ADA, COLLEAGUE, BOB)}
    for token in tokens.values():
        assert await is_valid(running, token)
    revoke(path, kind, id_, time.time() + 0.001)
    assert [each for each, token in tokens.items() if not await is_valid(running, token)] == refused
    revoke(path, kind, id_, time.time() - DAY)  # an older entry does not replace a newer one
    assert not await is_valid(running, tokens[ADA])


async def test_token_that_is_issued_later_is_valid(path: Path) -> None:
    revoke(path, "subject", ADA.subject_id, time.time() - 0.001)
    assert await is_valid(service(path), mint_token(KEY, ADA, DAY))


async def test_calls_of_services_for_a_revoked_subject_go_on(path: Path) -> None:
    """A run that was started before is finished. The tokens of services are valid for five minutes."""
    header = TokenMint(KEY, Role.SERVICE).header(ADA, "blocks")
    revoke(path, "subject", ADA.subject_id, time.time() + 0.001)
    assert await is_valid(service(path), header.removeprefix("Bearer "))


async def test_tokens_of_an_issuer_can_be_revoked(tmp_path: Path, path: Path) -> None:
    with FakeIssuer() as issuer:
        verifier = Verifier(issuer, str(tmp_path / "keys"))
        lost, other = (issuer.token(claims={"jti": id_, "sub": id_}) for id_ in ("lost", "other"))
        caller = await verifier.caller(other)
        await verifier.caller(lost)
        revoke(path, "token", "lost", time.time())
        assert [await is_valid(verifier.authenticator, token) for token in (lost, other)] == [False, True]
        revoke(path, "subject", caller.subject_id, time.time() + 1)
        assert not await is_valid(verifier.authenticator, other)


@pytest.mark.parametrize(
    "text",
    [
        "token lost\n",
        "tokens lost 1\n",
        "token lost soon\n",
        "token lost 1 2\n",
        "subject a nan\n",
        "\x00\n",
        "# ok\nx\n",
    ],
)
async def test_malformed_file_is_refused_at_the_start_and_changes_nothing_later(path: Path, text: str) -> None:
    revoke(path, "token", "lost", 1.0)
    running = service(path)
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"Line \d of .*keys.revoked"):
        service(path)
    assert not await is_valid(running, mint_token(KEY, ADA, DAY, token_id="lost"))
    path.unlink()
    assert await is_valid(running, mint_token(KEY, ADA, DAY, token_id="lost"))


async def test_file_that_cannot_be_read_for_a_while_is_read_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, lost = service(path), mint_token(KEY, ADA, DAY, token_id="lost")
    revoke(path, "token", "lost", 1.0)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        assert await is_valid(running, lost)
    assert not await is_valid(running, lost)


def test_entries_are_added_after_those_that_a_person_wrote(path: Path) -> None:
    path.write_text("# stolen laptop\n\ntoken a 1")
    revoke(path, "token", "b", 2.0)
    assert Revocations.read(path).entries == {("token", "a"): 1.0, ("token", "b"): 2.0}


def _replacements(path: Path) -> Iterator[None]:
    """Changes the file in the ways of an editor, of a copy, and of Kubernetes, which moves a link."""
    new = path.with_name("new")
    new.write_text("token lost 1\n")
    new.replace(path)
    yield
    path.unlink()
    yield
    for number in (1, 2):
        (path.parent / f"v{number}").mkdir()
        (path.parent / f"v{number}" / "f").write_text("token lost 1\n" if number == 1 else "token kept 1\n")
    (path.parent / "data").symlink_to("v1")
    path.symlink_to("data/f")
    yield
    (path.parent / "data.new").symlink_to("v2")
    os.replace(path.parent / "data.new", path.parent / "data")  # noqa: PTH105  (of a link)
    yield


async def test_replaced_file_is_read_again(path: Path) -> None:
    running, lost = service(path), mint_token(KEY, ADA, DAY, token_id="lost")
    assert [await is_valid(running, lost) for _ in _replacements(path)] == [False, True, False, True]
