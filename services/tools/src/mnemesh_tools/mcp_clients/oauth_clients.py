"""The SDK's clients of OAuth: their tokens, what they store, and how they authorize requests."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mnemesh_sandbox.redaction import Redactor
from pydantic import AnyUrl

from mnemesh_tools.mcp_clients.contracts import McpTarget, McpUnauthorized, OAuthAccess, OAuthState
from mnemesh_tools.model.mcp_oauth import OAuthGrant

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
