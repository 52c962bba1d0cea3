"""Authentication: principals that the metadata names, on loopback only, or tokens verified by each service.

A token is of an OpenID Connect issuer (`mnemesh_kit.oidc`), or signed by a key of the mesh with HS256. The latter has
the claims `org`, `sub` and `exp`, and says where and as what it is valid:

- `roles`: `reader`, `writer`, `admin` or `service`. Without the claim, the token is one of an admin.
- `agents`: the ids of the agents to which the token is limited. Without the claim, it is valid for all.
- `aud`: `mnemesh` for every service of the mesh, or the name of one service. A token with the role `service` names one.
"""

import base64
import hmac
import json
import re
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, ORGANIZATION_KEY, SUBJECT_KEY, Principal, Role
from mnemesh_kit.config import ConfigError, ServerConfig, StartupError
from mnemesh_kit.errors import InvalidArgument, MnemeshError, Unauthenticated
from mnemesh_kit.ids import is_id
from mnemesh_kit.network import is_loopback
from mnemesh_kit.revocations import CHECK_SECONDS, RevocationFile, revocation_file

if TYPE_CHECKING:
    from mnemesh_kit.oidc import Issuer

AUTHORIZATION_KEY: Final = "authorization"
MESH_AUDIENCE: Final = "mnemesh"
"""The audience of a token that is valid for every service."""
MESH_TOKEN_SECONDS: Final = 300
MIN_KEY_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 8192
_CACHED: Final = 4096
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}
_SUBJECT: Final = re.compile(r"([a-z_]+)-.+")


class Authenticator(Protocol):
    """Identifies the caller of each call.

    Example:
        >>> LoopbackAuthenticator().known({}) == DEFAULT_PRINCIPAL
        True
    """

    def known(self, metadata: Mapping[str, str | bytes]) -> Principal | None:
        """Returns the caller if it was identified before, as that of most calls; else None.

        Args:
            metadata: the call's metadata; keys are lower case.
        """
        ...

    async def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Identifies the caller. May wait for the keys of an issuer.

        Raises:
            Unauthenticated: the metadata does not prove who calls.
            PermissionDenied: the caller has no role in this mesh.
            InvalidArgument: the metadata names a caller that is not a valid principal.
            Unavailable: the keys of the issuer cannot be read.
        """
        ...


def authenticator(config: ServerConfig, service: str) -> Authenticator:
    """Returns the authenticator for a server with this configuration.

    Args:
        config: the settings of the server.
        service: the short name of the service, which is the audience of calls between services.

    Raises:
        StartupError: no keys are configured, and other machines could reach the server; or a setting is wrong.
    """
    from mnemesh_kit.oidc import Issuer, OidcSettings  # noqa: PLC0415  (servers only)

    settings = OidcSettings.of(config)
    issuer = None if settings is None else Issuer(settings)
    if config.auth_key_file is not None:
        revoked = RevocationFile(revocation_file(config.auth_key_file))
        return TokenAuthenticator(read_keys(config.auth_key_file), service, revoked, issuer)
    if not is_loopback(config.host):
        raise StartupError(
            f"Refusing to listen on {config.host} without authentication: "
            "set MNEMESH_AUTH_KEY_FILE, or listen on 127.0.0.1."
        )
    return LoopbackAuthenticator()


class LoopbackAuthenticator:
    """Trusts the principal that the metadata names. Without one, the caller is the default principal.

    Every caller has the role of a service: any local process may do everything.
    """

    def __init__(self) -> None:
        self._checked: dict[tuple[str | bytes, str | bytes], Principal] = {}

    async def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """See `known`."""
        return self.known(metadata)

    def known(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Returns the principal that the metadata names, or the default one."""
        organization = metadata.get(ORGANIZATION_KEY)
        subject = metadata.get(SUBJECT_KEY)
        if organization is None and subject is None:
            return DEFAULT_PRINCIPAL
        asserted = (organization or DEFAULT_PRINCIPAL.organization_id, subject or DEFAULT_PRINCIPAL.subject_id)
        known = self._checked.get(asserted)
        if known is None:
            known = _checked(*asserted, Role.SERVICE)
            if len(self._checked) >= _CACHED:
                self._checked.clear()
            self._checked[asserted] = known
        return known


class TokenAuthenticator:
    """Accepts bearer tokens that a key of the mesh or the issuer signed, and that are not revoked."""

    def __init__(
        self, keys: tuple[bytes, ...], service: str, revoked: RevocationFile, issuer: "Issuer | None" = None
    ) -> None:
        """Prepares the authenticator.

        Args:
            keys: verify tokens with HS256.
            service: the short name of the service, which is an audience.
            revoked: the revoked tokens.
            issuer: verifies all other tokens; None refuses them.
        """
        self._keys = keys
        self._service = service
        self._revoked = revoked
        self._issuer = issuer
        self._issuer_version = 0
        self._verified: dict[str | bytes | None, tuple[Principal, float]] = {}
        self._next_check = 0.0

    def known(self, metadata: Mapping[str, str | bytes]) -> Principal | None:
        """Returns the caller of a token that was verified before and has not expired."""
        now = time.time()
        if now >= self._next_check:
            self._check(now)
        found = self._verified.get(metadata.get(AUTHORIZATION_KEY))
        return found[0] if found is not None and found[1] > now else None

    async def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Verifies the token."""
        bearer = metadata.get(AUTHORIZATION_KEY)
        if not isinstance(bearer, str) or not bearer.startswith("Bearer "):
            raise Unauthenticated("A bearer token is required in the metadata key authorization.")
        verified = await self._verify(bearer[7:])
        if verified[1] <= time.time():
            raise Unauthenticated("The token has expired. Create another with `mnemesh tokens create`.")
        if len(self._verified) >= _CACHED:
            self._verified.clear()
        self._verified[bearer] = verified
        return verified[0]

    def _check(self, now: float) -> None:
        """Forgets verified tokens if some were revoked, or if the issuer has other keys."""
        self._next_check = now + CHECK_SECONDS
        if self._revoked.has_changed():
            self._verified.clear()
        if self._issuer is not None:
            self._issuer.keys.refresh()
            if self._issuer.keys.version != self._issuer_version:
                self._issuer_version = self._issuer.keys.version
                self._verified.clear()

    async def _verify(self, token: str) -> tuple[Principal, float]:
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"The token is longer than {MAX_TOKEN_BYTES:,} bytes.")
        try:
            principal, claims, leeway = await self._identify(token)
            issued_at, expires_at = float(claims.get("iat", 0)), float(claims["exp"])
            # Services and holders of the key make tokens of a few minutes for each call.
            is_short = leeway == 0 and 0 < expires_at - issued_at <= MESH_TOKEN_SECONDS
            if not is_short and self._revoked.current.revokes(principal, claims.get("jti"), issued_at):
                raise Unauthenticated("The token was revoked.")
            return replace(principal, expires_at=None if is_short else expires_at), expires_at + leeway
        except InvalidArgument as error:
            raise Unauthenticated("The token does not name a valid organization and subject.") from error
        except MnemeshError:
            raise
        # A token is input of a stranger. The parsers of JSON and of numbers raise many kinds of errors.
        except Exception as error:
            raise Unauthenticated("The token is not valid.") from error

    async def _identify(self, token: str) -> tuple[Principal, Mapping[str, Any], float]:
        """Returns the caller, the claims, and the seconds for which the token is valid after its end."""
        import jwt  # noqa: PLC0415  (only if tokens are in use)

        header = jwt.get_unverified_header(token)
        if self._issuer is None or header.get("alg") == _HEADER["alg"]:
            claims = self._claims(token)
            return _checked(claims["org"], claims["sub"], self._role(claims), _agents(claims)), claims, 0.0
        claims = await self._issuer.claims(token, header)
        return self._issuer.principal(claims), claims, self._issuer.leeway

    def _claims(self, token: str) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415  (only if tokens are in use)

        # The clock of a service that signs may be ahead. The time of issue only matters to revocations.
        options: Any = {"require": ["exp", "org", "sub"], "verify_aud": False, "verify_iat": False}
        for key in self._keys:
            try:
                return jwt.decode(token, key, algorithms=["HS256"], options=options)
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError as error:
                raise Unauthenticated("The token has expired. Create another with `mnemesh tokens create`.") from error
        raise Unauthenticated("The token is not signed by a key of this mesh.")

    def _role(self, claims: Mapping[str, Any]) -> Role:
        """Returns the highest role of a token for this service."""
        audience = claims.get("aud", MESH_AUDIENCE)
        audiences = audience if isinstance(audience, list) else [audience]
        roles = claims.get("roles", [Role.ADMIN])
        if not isinstance(roles, list):
            raise Unauthenticated("The claim roles of the token must be a list.")
        if Role.SERVICE in roles and self._service in audiences:
            return Role.SERVICE
        if MESH_AUDIENCE in audiences or self._service in audiences:
            for role in (Role.ADMIN, Role.WRITER, Role.READER):
                if role in roles:
                    return role
        raise Unauthenticated(f"The token has no role for the service {self._service}.")


class TokenMint:
    """Signs the short-lived tokens with which a holder of the key calls a service for a principal."""

    def __init__(self, key: bytes, role: Role = Role.ADMIN) -> None:
        """Prepares a mint.

        Args:
            key: signs the tokens.
            role: SERVICE for all tokens of a service; else the role for principals that have none of a client.
        """
        self._key = key
        self._role = role
        self._minted: dict[tuple[Hashable, ...], tuple[str, float]] = {}

    def header(self, principal: Principal, audience: str = MESH_AUDIENCE) -> str:
        """Returns the value of the authorization metadata. A token is reused for half of its lifetime."""
        now = time.time()
        role = self._role if Role.SERVICE in (self._role, principal.role) else principal.role
        key = (principal, role, principal.agents, audience)
        known = self._minted.get(key)
        if known is None or known[1] <= now:
            if len(self._minted) >= _CACHED:
                self._minted.clear()
            token = mint_token(self._key, principal, MESH_TOKEN_SECONDS, role=role, audience=audience)
            known = self._minted[key] = (f"Bearer {token}", now + MESH_TOKEN_SECONDS / 2)
        return known[0]


def mint_token(
    key: bytes,
    principal: Principal,
    seconds: float,
    *,
    role: Role = Role.ADMIN,
    audience: str = MESH_AUDIENCE,
    token_id: str | None = None,
) -> str:
    """Returns a signed token for `principal` that expires after `seconds`.

    Args:
        key: signs the token.
        principal: the caller, with the agents to which the token is limited. Its own role is not used.
        seconds: the time for which the token is valid.
        role: the role of the holder. Services are not limited to agents.
        audience: `mnemesh` for every service, or the name of the only service that accepts the token. A token with the
            role `service` needs the name of a service.
        token_id: the id by which the token can be revoked.
    """
    now = round(time.time(), 3)
    claims: dict[str, Any] = {
        "org": principal.organization_id,
        "sub": principal.subject_id,
        "aud": audience,
        "roles": [role.value],
        "iat": now,
        "exp": int(now + seconds),
    }
    if token_id is not None:
        claims["jti"] = token_id
    if principal.agents is not None and role is not Role.SERVICE:
        claims["agents"] = sorted(principal.agents)
    signed = b".".join(_base64url(json.dumps(part).encode()) for part in (_HEADER, claims))
    return b".".join((signed, _base64url(hmac.digest(key, signed, "sha256")))).decode()


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def read_keys(path: str) -> tuple[bytes, ...]:
    """Returns the keys of a key file with one key per line: the first signs, all verify.

    Raises:
        ConfigError: the file cannot be read, is empty, or has a key that is too short.
    """
    try:
        lines = Path(path).expanduser().read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error.strerror}.") from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys or min(map(len, keys)) < MIN_KEY_BYTES:
        raise ConfigError(f"The key file {path} must contain one key per line, each of at least {MIN_KEY_BYTES} bytes.")
    return keys


def _agents(claims: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the agents to which a token is limited."""
    agents = claims.get("agents")
    if agents is None:
        return None
    if not isinstance(agents, list) or not agents or not all(is_id(id_, "agent") for id_ in agents):
        raise Unauthenticated("The claim agents of the token must be a list of ids of agents.")
    return frozenset(agents)


def _checked(organization: object, subject: object, role: Role, agents: frozenset[str] | None = None) -> Principal:
    if not isinstance(organization, str) or not is_id(organization, "org"):
        raise InvalidArgument("The organization must be an id of the form org-<uuid4>.", field=ORGANIZATION_KEY)
    kind = _SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    if kind is None or not is_id(str(subject), kind[1]):
        raise InvalidArgument("The subject must be an id of the form user-<uuid4>.", field=SUBJECT_KEY)
    return Principal(organization, str(subject), role, agents)
