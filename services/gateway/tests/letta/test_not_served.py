"""Paths of the Letta server for which mnemesh has other concepts, or none."""

import pytest

from .rest import Rest

ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
USER = "user-00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/sandbox-config/", "secrets"),
        ("POST", "/sandbox-config/local/default", "secrets"),
        ("POST", "/sandbox-config/sandbox-1/environment-variable", "secrets"),
        ("POST", "/admin/users/", "mnemesh tokens create"),
        ("PUT", "/users/", "mnemesh tokens create"),
        ("DELETE", "/admin/orgs/", "mnemesh tokens create"),
        ("POST", "/orgs", "mnemesh tokens create"),
        ("POST", "/voice-beta/agent-1/chat/completions", "/v1/chat/completions"),
        ("GET", "/projects", "cloud"),
        ("GET", "/_internal_runs/", "without `_internal_`"),
        ("POST", "/anthropic/v1/messages", "provider"),
        ("GET", "/git/agent-1/state.git/info/refs", "repositories"),
        ("GET", "/tools/composio/apps", "GET /v1/tools/composio/apps"),
    ],
)
def test_what_is_not_served_says_what_to_use(rest: Rest, method: str, path: str, words: str) -> None:
    refused = rest.call(method, path, 501, json={"requests": []})
    assert words in refused["detail"]
    assert "docs/letta-compatibility.md" in refused["detail"]


@pytest.mark.parametrize("prefix", ["", "/admin"])
def test_callers_see_their_own_organization_and_user(rest: Rest, prefix: str) -> None:
    (organization,) = rest.call("GET", f"{prefix}/orgs/")
    (user,) = rest.call("GET", f"{prefix}/users/")
    assert organization["id"] == ORGANIZATION
    assert (user["id"], user["organization_id"]) == (USER, ORGANIZATION)
