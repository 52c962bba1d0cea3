"""Authorizations by a person: what is kept until the answer of the browser arrives, and the exchange of its code.

The SDK keeps a request open meanwhile, which only the process that began it could complete. So its flow is left at the
point where a person is needed, and the exchange is made here.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthTokenError, PKCEParameters
from mcp.client.auth.utils import handle_token_response_scopes, validate_authorization_response_iss
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, ProtectedResourceMetadata
from pydantic import AnyUrl

from mnemesh_tools.mcp_clients.contracts import OAuthAccess, OAuthBegun, OAuthState
from mnemesh_tools.mcp_clients.oauth_clients import Storage, code_client, registration

_GRANTED: Final = (200, 201)


class PersonNeeded(Exception):
    """The flow of the SDK has reached the point where a person opens this URL."""

    def __init__(self, url: str) -> None:
        super().__init__("A person must open a URL.")
        self.url = url


def begin_client(url: str, oauth: OAuthAccess, redirect_uri: str) -> OAuthClientProvider:
    """Returns the client of a new authorization, which raises PersonNeeded."""
    storage = Storage(oauth, registration(oauth.state, redirect_uri), None)
    return code_client(url, oauth, storage, redirect_uri, _person_needed, _no_answer)


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
    context = code_client(kept.url, oauth, storage, kept.redirect_uri, _person_needed, _no_answer).context
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


async def _person_needed(url: str) -> None:
    raise PersonNeeded(url)


async def _no_answer() -> AuthorizationCodeResult:
    raise AssertionError("The flow ends where a person is needed.")
