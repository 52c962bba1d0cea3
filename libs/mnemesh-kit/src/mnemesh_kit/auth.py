"""Authentication: principals that the metadata names, on loopback only, or HS256 tokens verified by each service.

A token has the claims `org`, `sub` and `exp`, and says where and as what it is valid:

- `roles`: `reader`, `writer`, `admin` or `service`. Without the claim, the token is one of an admin.
- `agents`: the ids of the agents to which the token is limited. Without the claim, it is valid for all.
- `aud`: `mnemesh` for every service of the mesh, or the name of one service. A token with the role `service` names one.
"""

import base64
import hmac
import ipaddress
import json
import re
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, ORGANIZATION_KEY, SUBJECT_KEY, Principal, Role
from mnemesh_kit.config import ConfigError, ServerConfig, StartupError
from mnemesh_kit.errors import InvalidArgument, Unauthenticated
from mnemesh_kit.ids import is_id

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
        >>> LoopbackAuthenticator().principal({}) == DEFAULT_PRINCIPAL
        True
    """

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Returns the caller.

        Args:
            metadata: the call's metadata; keys are lower case.

        Raises:
            Unauthenticated: the metadata does not prove who calls.
            InvalidArgument: the metadata names a caller that is not a valid principal.
        """
        ...


def authenticator(config: ServerConfig, service: str) -> Authenticator:
    """Returns the authenticator for a server with this configuration.

    Args:
        config: the settings of the server.
        service: the short name of the service, which is the audience of calls between services.

    Raises:
        StartupError: no keys are configured, and other machines could reach the server.
    """
    if config.auth_key_file is not None:
        return TokenAuthenticator(read_keys(config.auth_key_file), service)
    if not is_loopback(config.host):
        raise StartupError(
            f"Refusing to listen on {config.host} without authentication: "
            "set MNEMESH_AUTH_KEY_FILE, or listen on 127.0.0.1."
        )
    return LoopbackAuthenticator()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server that listens on `host`."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class LoopbackAuthenticator:
    """Trusts the principal that the metadata names. Without one, the caller is the default principal.

    Every caller has the role of a service: any local process may do everything.
    """

    def __init__(self) -> None:
        self._checked: dict[tuple[str | bytes, str | bytes], Principal] = {}

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
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
    """Accepts bearer tokens signed with one of the keys. The claims `org`, `sub` and `roles` are the principal."""

    def __init__(self, keys: tuple[bytes, ...], service: str) -> None:
        self._keys = keys
        self._service = service
        self._verified: dict[str, tuple[Principal, float]] = {}

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        header = metadata.get(AUTHORIZATION_KEY)
        if not isinstance(header, str) or not header.startswith("Bearer "):
            raise Unauthenticated("A bearer token is required in the metadata key authorization.")
        token = header[7:]
        known = self._verified.get(token)
        if known is None:
            known = self._verify(token)
            if len(self._verified) >= _CACHED:
                self._verified.clear()
            self._verified[token] = known
        if known[1] <= time.time():
            raise Unauthenticated("The token has expired. Create another with `mnemesh tokens create`.")
        return known[0]

    def _verify(self, token: str) -> tuple[Principal, float]:
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"The token is longer than {MAX_TOKEN_BYTES:,} bytes.")
        try:
            claims = self._claims(token)
            principal = _checked(claims["org"], claims["sub"], self._role(claims), _agents(claims))
            return principal, float(claims["exp"])
        except Unauthenticated:
            raise
        except InvalidArgument as error:
            raise Unauthenticated("The token does not name a valid organization and subject.") from error
        # A token is input of a stranger. The parsers of JSON and of numbers raise many kinds of errors.
        except Exception as error:
            raise Unauthenticated("The token is not valid.") from error

    def _claims(self, token: str) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415  (only if tokens are in use)

        options: Any = {"require": ["exp", "org", "sub"], "verify_aud": False}
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
) -> str:
    """Returns a signed token for `principal` that expires after `seconds`.

    Args:
        key: signs the token.
        principal: the caller, with the agents to which the token is limited. Its own role is not used.
        seconds: the time for which the token is valid.
        role: the role of the holder. Services are not limited to agents.
        audience: `mnemesh` for every service, or the name of the only service that accepts the token. A token with the
            role `service` needs the name of a service.
    """
    now = int(time.time())
    claims: dict[str, Any] = {
        "org": principal.organization_id,
        "sub": principal.subject_id,
        "aud": audience,
        "roles": [role.value],
        "iat": now,
        "exp": now + int(seconds),
    }
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
    if not isinstance(agents, list) or not agents or not all(isinstance(id_, str) for id_ in agents):
        raise Unauthenticated("The claim agents of the token must be a list of ids.")
    return frozenset(agents)


def _checked(organization: object, subject: object, role: Role, agents: frozenset[str] | None = None) -> Principal:
    if not isinstance(organization, str) or not is_id(organization, "org"):
        raise InvalidArgument("The organization must be an id of the form org-<uuid4>.", field=ORGANIZATION_KEY)
    kind = _SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    if kind is None or not is_id(str(subject), kind[1]):
        raise InvalidArgument("The subject must be an id of the form user-<uuid4>.", field=SUBJECT_KEY)
    return Principal(organization, str(subject), role, agents)
