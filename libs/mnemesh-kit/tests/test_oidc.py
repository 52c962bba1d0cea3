"""Tokens of an OpenID Connect issuer, which answers over HTTP."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from mnemesh_kit.auth import (
    AUTHORIZATION_KEY,
    MESH_TOKEN_SECONDS,
    TokenAuthenticator,
    authenticator,
    mint_token,
)
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, Role
from mnemesh_kit.config import ConfigError, ServerConfig
from mnemesh_kit.errors import PermissionDenied, Unauthenticated, Unavailable
from mnemesh_kit.ids import is_id, new_id
from mnemesh_kit.oidc import MAX_AGE_SECONDS, MAX_WAITING, RETRY_SECONDS, Issuer, OidcSettings, issuer_id
from mnemesh_kit.revocations import RevocationFile
from mnemesh_testkit.fakes.issuer import AUDIENCE, FakeIssuer, new_key

KEY = b"k" * 32


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    with FakeIssuer() as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_bytes(KEY)
    return str(path)


class Verifier:
    """An authenticator whose clock for the keys of the issuer stands still."""

    def __init__(self, issuer: FakeIssuer, key_file: str, **settings: Any) -> None:
        config = ServerConfig(auth_key_file=key_file, oidc_issuer=issuer.url, **{"oidc_audience": AUDIENCE, **settings})
        self.now = 0.0
        found = OidcSettings.of(config)
        assert found is not None
        self.issuer = Issuer(found, lambda: self.now)
        revoked = RevocationFile(Path(f"{key_file}.revoked"))
        self.authenticator = TokenAuthenticator((KEY,), "blocks", revoked, self.issuer)

    async def caller(self, token: str) -> Principal:
        metadata = {AUTHORIZATION_KEY: f"Bearer {token}"}
        return self.authenticator.known(metadata) or await self.authenticator.principal(metadata)

    async def pass_time(self, seconds: float) -> None:
        """Moves the clock, and lets the authenticator do what it does every two seconds."""
        self.now += seconds
        self.authenticator._check(0.0)
        if (reading := self.issuer.keys._reading) is not None:
            await reading
        self.authenticator._check(0.0)


@pytest.fixture
def verifier(issuer: FakeIssuer, key_file: str) -> Verifier:
    return Verifier(issuer, key_file)


def standing(caller: Principal) -> tuple[str, str, Role, frozenset[str] | None]:
    return caller.organization_id, caller.subject_id, caller.role, caller.agents


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_token_of_the_issuer_names_the_caller(issuer: FakeIssuer, verifier: Verifier, algorithm: str) -> None:
    issuer.keys["other"] = (algorithm, new_key(algorithm))
    caller = await verifier.caller(issuer.token(key="other"))
    subject = issuer_id("user", issuer.url, "auth0|ada")
    assert standing(caller) == (DEFAULT_PRINCIPAL.organization_id, subject, Role.WRITER, None)
    assert is_id(subject, "user")
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]


async def test_claims_are_named_by_settings(issuer: FakeIssuer, key_file: str) -> None:
    verifier = Verifier(
        issuer,
        key_file,
        oidc_organization_claim="tenant",
        oidc_subject_claim="email",
        oidc_role_claim="realm_access.roles",
        oidc_roles=("mesh-staff=writer", "mesh=owners=admin"),
        oidc_agents_claim="https://mesh.example/agents",
    )
    roles = {"roles": ["mesh-staff", "mesh=owners", "reader"]}
    agents = [new_id("agent")]
    claims = {
        "tenant": "acme",
        "email": "ada@acme.example",
        "realm_access": roles,
        "https://mesh.example/agents": agents,
        "roles": None,
    }
    caller = await verifier.caller(issuer.token(claims=claims))
    acme, ada = issuer_id("org", issuer.url, "acme"), issuer_id("user", issuer.url, "ada@acme.example")
    assert standing(caller) == (acme, ada, Role.ADMIN, frozenset(agents))
    nothing = await verifier.caller(issuer.token(claims={**claims, "https://mesh.example/agents": ["", "x", 1]}))
    assert nothing.agents == frozenset()
    for empty in (None, [], "", 1):
        with pytest.raises(PermissionDenied, match=r"mesh\.example/agents of the token names no agents"):
            await verifier.caller(issuer.token(claims={**claims, "https://mesh.example/agents": empty}))
    everything = await verifier.caller(issuer.token(claims={**claims, "https://mesh.example/agents": "*"}))
    assert everything.agents is None
    literal = {**claims, "tenant": new_id("org"), "email": new_id("user"), "realm_access": {"roles": "x mesh-staff"}}
    caller = await verifier.caller(issuer.token(claims=literal))
    assert standing(caller)[:3] == (literal["tenant"], literal["email"], Role.WRITER)
    for missing in ("tenant", "email"):
        with pytest.raises(Unauthenticated, match=missing):
            await verifier.caller(issuer.token(claims={**claims, missing: None}))
        with pytest.raises(Unauthenticated, match=missing):
            await verifier.caller(issuer.token(claims={**claims, missing: ["acme", "other"]}))
    with pytest.raises(PermissionDenied, match=r"realm_access\.roles"):
        await verifier.caller(issuer.token(claims={**claims, "realm_access": {"roles": ["writer", "admin"]}}))


@pytest.mark.parametrize("roles", [None, [], ["service"], "client", {"admin": True}, [["admin"]]])
async def test_caller_without_a_role_may_do_nothing(issuer: FakeIssuer, verifier: Verifier, roles: Any) -> None:
    with pytest.raises(PermissionDenied):
        await verifier.caller(issuer.token(claims={"roles": roles}))


def _part(value: dict[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _forgeries(issuer: FakeIssuer) -> Iterator[tuple[str, str]]:
    now = time.time()
    for name, value in (
        ("aud", "another"), ("aud", None), ("iss", "https://evil.example"), ("iss", None), ("exp", now - 120),
        ("exp", None), ("nbf", now + 120), ("iat", now + 120), ("sub", None), ("sub", ""), ("sub", ["ada"]),
    ):  # fmt: skip
        yield f"{name}={value}", issuer.token(claims={name: value})
    algorithm, private = issuer.keys["first"]
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    yield "alg=none", f"{_part({'alg': 'none', 'kid': 'first'})}.{_part(issuer.claims())}."
    # PyJWT refuses to sign with a public key as the secret.
    signed = f"{_part({'alg': 'HS256', 'kid': 'first'})}.{_part(issuer.claims())}"
    yield "HS256 by the public key", f"{signed}.{_encoded(hmac.digest(public, signed.encode(), 'sha256'))}"
    other = new_key("ES256")
    yield "signed by another key", jwt.encode(issuer.claims(), other, algorithm=algorithm, headers={"kid": "first"})
    yield (
        "another algorithm",
        jwt.encode(issuer.claims(), new_key("EdDSA"), algorithm="EdDSA", headers={"kid": "first"}),
    )
    yield "no name of a key", jwt.encode(issuer.claims(), private, algorithm=algorithm)
    yield "a name that is no text", jwt.encode(issuer.claims(), private, algorithm=algorithm, headers={"kid": ""})
    yield "too long", issuer.token(claims={"more": "x" * 9_000})
    head, body, signature = issuer.token().split(".")
    yield "changed", f"{head}.{issuer.token(claims={'sub': 'eve'}).split('.')[1]}.{signature}"
    yield "cut", f"{head}.{body}"


async def test_forged_tokens_are_unauthenticated(issuer: FakeIssuer, verifier: Verifier) -> None:
    await verifier.caller(issuer.token())
    for shown, forged in _forgeries(issuer):
        with pytest.raises(Unauthenticated):
            raise AssertionError(f"{shown} is accepted as {await verifier.caller(forged)}")


async def test_clocks_may_differ_by_a_minute(issuer: FakeIssuer, verifier: Verifier) -> None:
    now = time.time()
    await verifier.caller(issuer.token(claims={"exp": now - 30}))
    await verifier.caller(issuer.token(claims={"nbf": now + 30, "iat": now + 30}))


async def test_clock_of_a_service_that_signs_may_be_ahead(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now + 60)
        token = mint_token(KEY, DEFAULT_PRINCIPAL, MESH_TOKEN_SECONDS, role=Role.SERVICE, audience="blocks")
    assert (await verifier.caller(token)).role is Role.SERVICE


async def test_tokens_of_the_key_file_are_valid_beside_those_of_the_issuer(
    issuer: FakeIssuer, verifier: Verifier
) -> None:
    me = Principal(new_id("org"), new_id("user"))
    issuer.is_away = True
    assert standing(await verifier.caller(mint_token(KEY, me, 60, role=Role.READER)))[2] is Role.READER


async def test_new_key_is_valid_and_a_withdrawn_one_is_not(issuer: FakeIssuer, verifier: Verifier) -> None:
    old = issuer.token()
    await verifier.caller(old)
    issuer.keys["second"] = ("EdDSA", new_key("EdDSA"))
    verifier.now += RETRY_SECONDS
    await verifier.caller(issuer.token(key="second"))
    del issuer.keys["first"]
    await verifier.pass_time(MAX_AGE_SECONDS - 1)
    await verifier.caller(old)
    await verifier.pass_time(1)
    with pytest.raises(Unauthenticated):
        await verifier.caller(old)
    await verifier.caller(issuer.token(key="second"))


async def test_token_of_a_key_that_was_replaced_under_its_name_is_refused(
    issuer: FakeIssuer, verifier: Verifier
) -> None:
    stolen = issuer.token()
    await verifier.caller(stolen)
    await verifier.pass_time(0)
    await verifier.caller(stolen)
    issuer.keys["first"] = ("ES256", new_key("ES256"))
    await verifier.pass_time(MAX_AGE_SECONDS)
    with pytest.raises(Unauthenticated):
        await verifier.caller(stolen)
    await verifier.caller(issuer.token())


async def test_forged_names_of_keys_do_not_flood_the_issuer(issuer: FakeIssuer, verifier: Verifier) -> None:
    await verifier.caller(issuer.token())
    before = len(issuer.requests)
    for window in (1, 2):
        verifier.now += RETRY_SECONDS
        for number in range(50):
            with pytest.raises(Unauthenticated):
                await verifier.caller(issuer.token(kid=f"forged-{window}-{number}"))
        assert len(issuer.requests) == before + 2 * window  # the configuration and the keys


async def test_known_keys_stay_valid_while_the_issuer_is_away(issuer: FakeIssuer, verifier: Verifier) -> None:
    issuer.is_away = True
    with pytest.raises(Unavailable, match="503"):
        await verifier.caller(issuer.token())
    issuer.is_away = False
    with pytest.raises(Unavailable):  # it is not asked again at once
        await verifier.caller(issuer.token())
    verifier.now += RETRY_SECONDS
    await verifier.caller(issuer.token())
    issuer.is_away = True
    await verifier.pass_time(MAX_AGE_SECONDS)
    await verifier.caller(issuer.token(claims={"sub": "eve"}))
    with pytest.raises(Unavailable):
        await verifier.caller(issuer.token(kid="unknown"))


async def test_other_calls_go_on_while_keys_are_read(issuer: FakeIssuer, verifier: Verifier) -> None:
    known = issuer.token()
    await verifier.caller(known)
    issuer.proceed.clear()
    verifier.now += RETRY_SECONDS
    waiting = [asyncio.create_task(verifier.caller(issuer.token(kid="unknown"))) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    await verifier.caller(known)
    await verifier.caller(issuer.token(claims={"sub": "eve"}))
    with pytest.raises(Unavailable, match="Too many"):
        await verifier.caller(issuer.token(kid="one more"))
    waiting[0].cancel()
    issuer.proceed.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {Unauthenticated, asyncio.CancelledError}


async def test_configuration_of_another_issuer_is_refused(issuer: FakeIssuer, verifier: Verifier) -> None:
    issuer.named = "https://evil.example"
    with pytest.raises(Unavailable, match=r"evil\.example"):
        await verifier.caller(issuer.token())


async def test_keys_are_not_read_from_where_a_redirect_leads(issuer: FakeIssuer, verifier: Verifier) -> None:
    issuer.has_moved = True
    with pytest.raises(Unavailable, match="302"):
        await verifier.caller(issuer.token())
    assert "/moved" not in issuer.requests


async def test_url_of_the_keys_can_be_given(issuer: FakeIssuer, key_file: str) -> None:
    issuer.named = "https://elsewhere.example"
    verifier = Verifier(issuer, key_file, oidc_jwks_url=f"{issuer.url}/keys")
    await verifier.caller(issuer.token())
    assert issuer.requests == ["/keys"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"auth_key_file": None}, "MNEMESH_AUTH_KEY_FILE"),
        ({"oidc_audience": None}, "MNEMESH_OIDC_AUDIENCE"),
        ({"oidc_issuer": None}, "MNEMESH_OIDC_AUDIENCE needs MNEMESH_OIDC_ISSUER"),
        ({"oidc_issuer": None, "oidc_audience": None, "oidc_roles": ("a=admin",)}, "MNEMESH_OIDC_ROLES needs"),
        ({"oidc_issuer": "http://issuer.example"}, "MNEMESH_OIDC_ISSUER"),
        ({"oidc_issuer": "issuer.example"}, "MNEMESH_OIDC_ISSUER"),
        ({"oidc_issuer": "https://[issuer"}, "MNEMESH_OIDC_ISSUER"),
        ({"oidc_jwks_url": "http://issuer.example/keys"}, "MNEMESH_OIDC_JWKS_URL"),
        ({"oidc_jwks_url": "file:///etc/passwd"}, "MNEMESH_OIDC_JWKS_URL"),
        ({"oidc_roles": ("staff",)}, "MNEMESH_OIDC_ROLES"),
        ({"oidc_roles": ("staff=service",)}, "MNEMESH_OIDC_ROLES"),
        ({"oidc_roles": ("=admin",)}, "MNEMESH_OIDC_ROLES"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(key_file: str, settings: dict[str, Any], named: str) -> None:
    given = {"auth_key_file": key_file, "oidc_issuer": "https://issuer.example", "oidc_audience": AUDIENCE, **settings}
    with pytest.raises(ConfigError, match=named):
        authenticator(ServerConfig(**given), "blocks")
