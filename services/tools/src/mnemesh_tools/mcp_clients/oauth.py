"""OAuth of MCP servers with the SDK's client: authorizations that a person completes, and tokens that are refreshed."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit
from weakref import WeakSet

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthTokenError, PKCEParameters
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import handle_token_response_scopes, validate_authorization_response_iss
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import OAuthGrant
from pydantic import AnyUrl

from mnemesh_tools.mcp_clients.contracts import (
    McpContactFailed,
    McpTarget,
    McpUnauthorized,
    OAuthAccess,
    OAuthBegun,
    OAuthState,
)
from mnemesh_tools.model.mcp_servers import TransportType

NEEDED: Final = "The server asks for an authorization by a person: StartMcpAuthorization begins one."
_REFUSED: Final = 401
_FORBIDDEN: Final = 403
_UNUSED_REDIRECT: Final = "http://127.0.0.1/unused"


class Unauthorized(httpx2.Auth):
    """Notices that a server asks for an authorization. The SDK's client would register at each contact."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        if response.status_code == _REFUSED:
            raise McpUnauthorized(NEEDED)


class TokenAuth(httpx2.Auth):
    """Authorizes the requests of several sessions with one client of the SDK.

    That client has a lock, which it holds until the answer to a request begins. A server may begin it when a tool has
    ended, so only requests without a valid token pass through the client.
    """

    def __init__(self, client: OAuthClientProvider) -> None:
        self._client = client

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self._client.context
        if context.current_tokens is not None and context.is_token_valid():
            request.headers["Authorization"] = f"Bearer {context.current_tokens.access_token}"
            response = yield request
            if response.status_code not in (_REFUSED, _FORBIDDEN):
                return
        flow = self._client.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


class Storage:
    """The registration and the tokens of one server, in the form that the SDK asks for."""

    def __init__(
        self, oauth: OAuthAccess, state: OAuthState | None, keep: Callable[[OAuthState], Awaitable[None]] | None
    ) -> None:
        self._oauth = oauth
        self._keep = keep
        self.state = state or OAuthState()
        self.client: OAuthClientProvider | None = None
        self._redactors: WeakSet[Redactor] = WeakSet()

    def hide_in(self, redactor: Redactor) -> None:
        """Makes the tokens secrets of a redactor: those of now, and those that replace them."""
        self._redactors.add(redactor)
        redactor.learn(self.state.secrets())

    async def get_tokens(self) -> OAuthToken | None:
        return None if self.state.tokens is None else OAuthToken.model_validate_json(self.state.tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if self.client is None:
            return  # no client uses this storage yet
        context = self.client.context
        ends = None if tokens.expires_in is None else time.time() + tokens.expires_in
        resource, metadata = context.protected_resource_metadata, context.oauth_metadata
        self.state = OAuthState(
            client=None if context.client_info is None else context.client_info.model_dump_json(exclude_none=True),
            tokens=tokens.model_dump_json(exclude_none=True),
            metadata=None if metadata is None else metadata.model_dump_json(exclude_none=True),
            resource=None if resource is None else resource.model_dump_json(exclude_none=True),
            authorization_server=context.auth_server_url,
            expires_at=None if ends is None else datetime.fromtimestamp(ends, UTC),
        )
        for redactor in self._redactors:
            redactor.learn(self.state.secrets())
        if self._keep is not None:
            await self._keep(self.state)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        oauth = self._oauth
        if oauth.client_id is not None:
            return OAuthClientInformationFull(
                client_id=oauth.client_id,
                client_secret=oauth.client_secret,
                token_endpoint_auth_method="none" if oauth.client_secret is None else "client_secret_basic",
                issuer=oauth.issuer,
            )
        return None if self.state.client is None else OAuthClientInformationFull.model_validate_json(self.state.client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Is stored with the tokens."""


def target_client(target: McpTarget, oauth: OAuthAccess, storage: Storage) -> TokenAuth:
    """Returns the client of a server, with the endpoints and the times that an earlier one found."""
    client: OAuthClientProvider
    if oauth.grant is OAuthGrant.CLIENT_CREDENTIALS:
        client = ClientCredentialsOAuthProvider(
            target.url,
            storage,
            oauth.client_id or "",
            oauth.client_secret or "",
            scope=oauth.scope,
            issuer=oauth.issuer,
        )
        storage.client = client
    else:

        async def needs_person(_: str) -> None:
            raise McpUnauthorized(NEEDED)

        async def no_answer() -> AuthorizationCodeResult:
            raise McpUnauthorized(NEEDED)

        uri = _redirect_uri(storage.state) or _UNUSED_REDIRECT
        client = code_client(target.url, oauth, storage, uri, needs_person, no_answer)
    state, context = storage.state, client.context
    if state.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate_json(state.metadata)
    if state.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate_json(state.resource)
    context.auth_server_url = state.authorization_server
    context.token_expiry_time = None if state.expires_at is None else state.expires_at.timestamp()
    return TokenAuth(client)


def code_client(
    url: str,
    oauth: OAuthAccess,
    storage: Storage,
    redirect_uri: str,
    redirect: Callable[[str], Awaitable[None]],
    callback: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    is_web = not (urlsplit(redirect_uri).hostname or "").startswith(("127.", "localhost", "::1"))
    metadata = OAuthClientMetadata(
        client_name="mnemesh",
        redirect_uris=[AnyUrl(redirect_uri)],
        scope=oauth.scope,
        application_type="web" if is_web else "native",
    )
    storage.client = OAuthClientProvider(url, metadata, storage, redirect, callback)
    return storage.client


def registration(state: OAuthState | None, redirect_uri: str) -> OAuthState | None:
    """Returns an earlier registration with the same redirect URI, without its tokens."""
    if state is None or state.client is None or _redirect_uri(state) != redirect_uri:
        return None
    return OAuthState(client=state.client)


def _redirect_uri(state: OAuthState) -> str | None:
    if state.client is None:
        return None
    uris = OAuthClientInformationFull.model_validate_json(state.client).redirect_uris
    return str(uris[0]) if uris else None


_GRANTED: Final = (200, 201)


class PersonNeeded(Exception):
    """The flow of the SDK has reached the point where a person opens this URL."""

    def __init__(self, url: str) -> None:
        super().__init__("A person must open a URL.")
        self.url = url


def begin_client(url: str, oauth: OAuthAccess, redirect_uri: str) -> OAuthClientProvider:
    """Returns the client of a new authorization, which raises PersonNeeded."""
    storage = Storage(oauth, registration(oauth.state, redirect_uri), None)
    return code_client(url, oauth, storage, redirect_uri, _refuse_without_person, _no_answer)


def begun(client: OAuthClientProvider, url: str, redirect_uri: str) -> tuple[str, OAuthBegun]:
    """Returns the URL for the person, with a challenge of ours, and what the exchange needs.

    Args:
        client: The client that has raised PersonNeeded.
        url: The URL of that error.
        redirect_uri: The redirect URI of the authorization.
    """
    pkce, parts, context = PKCEParameters.generate(), urlsplit(url), client.context
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    query["code_challenge"] = pkce.code_challenge
    information = context.client_info
    metadata, resource = context.oauth_metadata, context.protected_resource_metadata
    kept = OAuthBegun(
        state=query.get("state", ""),
        verifier=pkce.code_verifier,
        url=context.server_url,
        redirect_uri=redirect_uri,
        client="{}" if information is None else information.model_dump_json(exclude_none=True),
        metadata=None if metadata is None else metadata.model_dump_json(exclude_none=True),
        resource=None if resource is None else resource.model_dump_json(exclude_none=True),
        authorization_server=context.auth_server_url,
        scope=context.client_metadata.scope,
    )
    return parts._replace(query=urlencode(query)).geturl(), kept


async def exchange(
    opened: httpx2.AsyncClient, oauth: OAuthAccess, kept: OAuthBegun, code: str, issuer: str | None
) -> OAuthState:
    """Exchanges a code for tokens, and returns what the authorization left.

    Args:
        opened: The HTTP client, without authorization.
        oauth: The settings of the server.
        kept: What the beginning of the authorization kept.
        code: The code of the redirect.
        issuer: The parameter `iss` of the redirect.

    Raises:
        OAuthFlowError, OAuthTokenError: The answer is that of another server, or the authorization server refuses.
        httpx2.HTTPError: It does not answer.
    """
    storage = Storage(oauth, None, None)
    context = code_client(kept.url, oauth, storage, kept.redirect_uri, _refuse_without_person, _no_answer).context
    context.client_info = OAuthClientInformationFull.model_validate_json(kept.client)
    context.auth_server_url = kept.authorization_server
    if kept.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate_json(kept.metadata)
    if kept.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate_json(kept.resource)
    validate_authorization_response_iss(issuer, context.oauth_metadata)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": str(AnyUrl(kept.redirect_uri)),
        "client_id": context.client_info.client_id or "",
        "code_verifier": kept.verifier,
    }
    if context.should_include_resource_param():
        form["resource"] = context.get_resource_url()
    form, headers = context.prepare_token_auth(form, {"Content-Type": "application/x-www-form-urlencoded"})
    metadata, base = context.oauth_metadata, context.get_authorization_base_url(kept.url)
    endpoint = urljoin(base, "/token") if metadata is None else str(metadata.token_endpoint)
    response = await opened.send(httpx2.Request("POST", endpoint, data=form, headers=headers))
    if response.status_code not in _GRANTED:
        raise OAuthTokenError(f"Token exchange failed ({response.status_code}): {(await response.aread()).decode()}")
    tokens = await handle_token_response_scopes(response)
    if tokens.scope is None:
        tokens.scope = kept.scope  # an omitted scope is the requested one
    await storage.set_tokens(tokens)
    return storage.state


async def _refuse_without_person(url: str) -> None:
    raise PersonNeeded(url)


async def _no_answer() -> AuthorizationCodeResult:
    raise AssertionError("The flow ends where a person is needed.")


OpenClient = Callable[[McpTarget, httpx2.Auth | None, Callable[[int], None]], httpx2.AsyncClient]
Changed = Callable[[McpTarget, OAuthState], Awaitable[None]]


class McpAuthorizations:
    """The OAuth clients of servers. All sessions of a server share one, so that a refresh token is used once."""

    open_client: OpenClient
    """Opens an HTTP client for a server, with its authorization."""

    def __init__(self, connect_seconds: float, changed: Changed) -> None:
        """Creates the clients.

        Args:
            connect_seconds: The longest time to find and ask an authorization server.
            changed: Receives the new tokens of a stored server.
        """
        logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)  # its ERROR has traces with tokens
        self._connect_seconds = connect_seconds
        # By the organization and its server.
        self._clients: dict[tuple[str, str], tuple[McpTarget, Storage, httpx2.Auth]] = {}
        self._changed = changed

    def client(self, target: McpTarget) -> httpx2.Auth | None:
        """Returns the authorization of the requests to a server; None if it has none."""
        if target.oauth is None:
            return None
        state = target.oauth.state
        if target.oauth.grant is OAuthGrant.AUTHORIZATION_CODE and (state is None or state.tokens is None):
            return Unauthorized()
        if not target.is_stored or not target.server_id:
            storage = Storage(target.oauth, target.oauth.state, None)
            storage.hide_in(target.redactor)
            return target_client(target, target.oauth, storage)
        key = target.organization_id, target.server_id
        known = self._clients.get(key)
        if known is None or (known[0].url, known[0].oauth) != (target.url, target.oauth):

            async def keep(state: OAuthState) -> None:
                await self._changed(target, state)

            storage = Storage(target.oauth, target.oauth.state, keep)
            known = target, storage, target_client(target, target.oauth, storage)
            self._clients[key] = known
        known[1].hide_in(target.redactor)
        return known[2]

    def forget(self, organization_id: str, server_id: str) -> None:
        """Forgets the client of a server whose settings or tokens have changed."""
        self._clients.pop((organization_id, server_id), None)

    async def start(self, target: McpTarget, redirect_uri: str) -> tuple[str, OAuthBegun] | None:
        """Begins an authorization, and returns the URL that a person opens, and what `complete` needs.

        Returns None if the server does not ask for one.

        Raises:
            McpContactFailed: The server or its authorization server does not answer, or refuses.
        """
        if target.oauth is None:
            return None
        client = begin_client(target.url, target.oauth, redirect_uri)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._authorize(target, client)
        except PersonNeeded as needed:
            return begun(client, needed.url, redirect_uri)
        except TimeoutError as error:
            raise McpContactFailed(f"The server did not answer within {self._connect_seconds:g} seconds.") from error
        except Exception as error:
            raise McpContactFailed(_described(target, error)) from error
        return None

    async def complete(self, target: McpTarget, kept: OAuthBegun, code: str, issuer: str | None) -> OAuthState:
        """Exchanges the code that a browser brought, and returns what the authorization left. A code works once.

        Raises:
            McpContactFailed: The settings have changed, or the authorization server refuses.
        """
        oauth = target.oauth
        if oauth is None or oauth.grant is not OAuthGrant.AUTHORIZATION_CODE or target.url != kept.url:
            raise McpContactFailed("The settings of the server have changed.")
        try:
            async with asyncio.timeout(self._connect_seconds), self.open_client(target, None, _ignore) as opened:
                return await exchange(opened, oauth, kept, code, issuer)
        except TimeoutError as error:
            raise McpContactFailed("The authorization server did not answer in time.") from error
        except Exception as error:
            raise McpContactFailed(_described(target, error).replace(code, "[code]")) from error

    async def _authorize(self, target: McpTarget, client: OAuthClientProvider) -> None:
        """Makes a request that the server refuses without an authorization."""
        async with self.open_client(target, client, _ignore) as opened:
            is_sse = target.transport is TransportType.SSE
            headers = {"accept": "text/event-stream" if is_sse else "application/json, text/event-stream"}
            body = None if is_sse else {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            async with opened.stream("GET" if is_sse else "POST", target.url, headers=headers, json=body):
                pass


def _ignore(_: int) -> None:
    """The status of an answer of an authorization is none of a session."""


def _described(target: McpTarget, error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return target.masked(" ".join(str(error).split()) or type(error).__name__)[:500]
