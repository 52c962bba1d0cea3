"""Tokens of an OpenID Connect issuer: its keys, which are read over HTTP and kept, and the principal of its claims."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, Role
from mnemesh_kit.config import ConfigError, ServerConfig
from mnemesh_kit.errors import PermissionDenied, Unauthenticated, Unavailable
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.network import is_loopback
from mnemesh_kit.private_files import EventLog

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
LEEWAY_SECONDS: Final = 60.0
"""How far the clocks of the issuer and of this machine may differ."""
MAX_AGE_SECONDS: Final = 300.0
"""The age at which keys are read again, in the background. While the issuer is away, known keys stay valid."""
RETRY_SECONDS: Final = 10.0
"""The time between two reads because of an unknown key: forged names of keys cannot make a service flood the issuer."""
FETCH_SECONDS: Final = 5.0
ALL_AGENTS: Final = "*"
"""The value of the agents claim of a token that is not limited."""
MAX_WAITING: Final = 100
"""How many calls may wait for the keys at the same time."""
_DISCOVERY: Final = "/.well-known/openid-configuration"
_CLIENT_ROLES: Final = (Role.ADMIN, Role.WRITER, Role.READER)
_SETTINGS: Final = tuple(field for field in fields(ServerConfig) if field.name.startswith("oidc_"))
_log = EventLog("mnemesh.auth")


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """An issuer, and which of its claims mean what."""

    issuer: str
    audience: str
    jwks_url: str | None = None
    subject_claim: str = "sub"
    organization_claim: str | None = None
    """None: every caller belongs to the default organization."""
    role_claim: str = "roles"
    roles: Mapping[str, Role]
    """The values of the role claim that mean a role."""
    agents_claim: str | None = None
    """None: no token is limited to agents."""

    @classmethod
    def of(cls, config: ServerConfig) -> "OidcSettings | None":
        """Returns the settings of a service; None if it accepts no tokens of an issuer.

        Raises:
            ConfigError: one is missing or wrong.
        """
        if config.oidc_issuer is None:
            for field in _SETTINGS:
                if getattr(config, field.name) != field.default:
                    raise ConfigError(f"MNEMESH_{field.name.upper()} needs MNEMESH_OIDC_ISSUER, which is not set.")
            return None
        if config.auth_key_file is None:
            raise ConfigError(
                "MNEMESH_OIDC_ISSUER needs MNEMESH_AUTH_KEY_FILE: services sign their calls of each other with its key."
            )
        if config.oidc_audience is None:
            raise ConfigError("MNEMESH_OIDC_AUDIENCE must be set with MNEMESH_OIDC_ISSUER.")
        _require_https(config.oidc_issuer, "MNEMESH_OIDC_ISSUER")
        if config.oidc_jwks_url is not None:
            _require_https(config.oidc_jwks_url, "MNEMESH_OIDC_JWKS_URL")
        return cls(
            issuer=config.oidc_issuer,
            audience=config.oidc_audience,
            jwks_url=config.oidc_jwks_url,
            subject_claim=config.oidc_subject_claim,
            organization_claim=config.oidc_organization_claim,
            role_claim=config.oidc_role_claim,
            roles=_roles(config.oidc_roles),
            agents_claim=config.oidc_agents_claim,
        )


class IssuerKeys:
    """The public keys of an issuer by their names. They are read with the first token."""

    def __init__(self, issuer: str, jwks_url: str | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._monotonic = monotonic
        self._keys: dict[str, PyJWK] = {}
        self._read_at = float("-inf")
        self._failure = ""
        self._reading: asyncio.Task[None] | None = None
        self._waiting = 0
        self.version = 0
        """Rises when the keys have changed."""

    async def find(self, name: str) -> "PyJWK":
        """Returns a key.

        Raises:
            Unauthenticated: the issuer has no such key.
            Unavailable: the key is not known, and the issuer's keys cannot be read.
        """
        if name not in self._keys:
            if self._waiting >= MAX_WAITING:
                raise Unavailable("Too many calls wait for the keys of the issuer. Try again.")
            self._waiting += 1
            try:
                await self._read_unless_recent()
            finally:
                self._waiting -= 1
        found = self._keys.get(name)
        if found is not None:
            return found
        if self._failure:
            raise Unavailable(f"The keys of the issuer {self._issuer} cannot be read: {self._failure}. Try again.")
        raise Unauthenticated("The token is signed with a key that its issuer does not have.")

    def refresh(self) -> None:
        """Begins to read the keys again if they are old."""
        if self._keys and self._monotonic() - self._read_at >= MAX_AGE_SECONDS:
            self._start()

    async def _read_unless_recent(self) -> None:
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._monotonic() - self._read_at >= RETRY_SECONDS:
            self._start()
        if self._reading is not None:
            await asyncio.shield(self._reading)  # a cancelled call does not stop what others wait for

    def _start(self) -> None:
        if self._reading is None or self._reading.done():
            self._read_at = self._monotonic()
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            keys = await asyncio.to_thread(self._fetch)
        except Exception as error:  # of the network, or because of what the issuer answered
            self._failure = str(error) or type(error).__name__
            _log.warning("issuer_keys_unavailable", issuer=self._issuer, reason=self._failure)
            return
        self._failure = ""
        before, self._keys = self._keys, keys
        # An issuer may publish another key under the name of an old one.
        if {name: key.key for name, key in before.items()} != {name: key.key for name, key in keys.items()}:
            self.version += 1
            _log.info("issuer_keys_read", issuer=self._issuer, keys=sorted(keys))

    def _fetch(self) -> "dict[str, PyJWK]":
        """Returns the keys that the issuer publishes for signatures. Blocks."""
        from jwt import PyJWKClient, PyJWKSet  # noqa: PLC0415  (only if an issuer is configured)

        def read(url: str) -> Any:
            return PyJWKClient(url, cache_jwk_set=False, timeout=FETCH_SECONDS).fetch_data()

        url = self._jwks_url
        if url is None:
            found = read(self._issuer.rstrip("/") + _DISCOVERY)
            if found.get("issuer") != self._issuer:
                raise ValueError(f"its configuration names the issuer {str(found.get('issuer'))[:200]!r}")
            url = str(found.get("jwks_uri"))
            _require_https(url, "jwks_uri of the issuer")
        keys = PyJWKSet.from_dict(read(url)).keys
        return {
            key.key_id: key
            for key in keys
            if key.key_id and key.public_key_use in ("sig", None) and key.algorithm_name in ALGORITHMS
        }


class Issuer:
    """Verifies the tokens of an issuer."""

    def __init__(self, settings: OidcSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self.leeway = LEEWAY_SECONDS
        self.keys = IssuerKeys(settings.issuer, settings.jwks_url, monotonic)

    async def claims(self, token: str, header: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the claims of a valid token.

        Args:
            token: the token.
            header: its header, which is not verified.

        Raises:
            Unauthenticated: it is not one of the issuer for this mesh, or it has expired.
            Unavailable: the issuer's keys cannot be read.
        """
        import jwt  # noqa: PLC0415  (only if tokens are in use)

        name = header.get("kid")
        if not isinstance(name, str) or not name:
            raise Unauthenticated("The token does not name its key (kid).")
        key = await self.keys.find(name)
        if header.get("alg") != key.algorithm_name:
            raise Unauthenticated("The token is not signed with the algorithm of its key.")
        options: Any = {"require": ["exp", "iss", "aud"]}
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_SECONDS,
                options=options,
            )
        except jwt.ExpiredSignatureError as error:
            raise Unauthenticated("The token has expired. Get another one from its issuer.") from error
        except jwt.InvalidAudienceError as error:
            raise Unauthenticated("The token is for another audience.") from error
        except jwt.InvalidIssuerError as error:
            raise Unauthenticated("The token is of another issuer.") from error

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        """Returns the caller that verified claims name.

        Raises:
            Unauthenticated: the claim of the subject or of the organization is missing.
            PermissionDenied: no value of the role claim means a role, or the agents claim has no value.
        """
        settings = self._settings
        organization = DEFAULT_PRINCIPAL.organization_id
        if settings.organization_claim is not None:
            organization = self._id("org", _text(claims, settings.organization_claim))
        subject = self._id("user", _text(claims, settings.subject_claim))
        held = {settings.roles[value] for value in _values(claims, settings.role_claim) if value in settings.roles}
        role = next((role for role in _CLIENT_ROLES if role in held), None)
        if role is None:
            raise PermissionDenied(
                f"No value of the claim {settings.role_claim} of the token means a role of this mesh.",
                required_role=Role.READER.value,
            )
        agents = None
        if settings.agents_claim is not None:
            values = _values(claims, settings.agents_claim)
            if not values:
                raise PermissionDenied(
                    f"The claim {settings.agents_claim} of the token names no agents. {ALL_AGENTS} stands for all."
                )
            agents = None if ALL_AGENTS in values else frozenset(id_ for id_ in values if is_id(id_, "agent"))
        return Principal(organization, subject, role, agents, issuer=settings.issuer)

    def _id(self, kind: str, value: str) -> str:
        return issuer_id(kind, self._settings.issuer, value)


def issuer_id(kind: str, issuer: str, value: str) -> str:
    """Returns the id of an organization (`org`) or a subject (`user`) of an issuer: the value itself if it is an id."""
    return value if is_id(value, kind) else derive_id(kind, issuer, value)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Returns a claim by its name, or by a path of names with dots, such as `realm_access.roles`; None without it."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = _claim(claims, name)
    if not isinstance(value, str) or not value:
        raise Unauthenticated(f"The token has no claim {name}.")
    return value


def _values(claims: Mapping[str, Any], name: str) -> list[str]:
    """Returns the values of a claim: a list, or words in a text."""
    value = _claim(claims, name)
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _roles(pairs: tuple[str, ...]) -> Mapping[str, Role]:
    """Returns the roles by the values of the claim: `staff=writer`. Without any, the values are the names of roles."""
    roles = {role.value: role for role in _CLIENT_ROLES}
    if not pairs:
        return roles
    found = {}
    for pair in pairs:
        value, _, name = pair.rpartition("=")
        if not value or name not in roles:
            raise ConfigError(
                f"MNEMESH_OIDC_ROLES: {pair!r} is not of the form value=reader, value=writer or value=admin."
            )
        found[value] = roles[name]
    return found


def _require_https(url: str, name: str) -> None:
    """Refuses a URL from which others on the way could give other keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))):
        return
    raise ConfigError(f"{name} must be a URL with https, or with http on this machine: {url[:200]!r}.")
