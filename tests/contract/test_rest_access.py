"""Roles over HTTP: each route of the gateway with each role.

The RPCs that a route calls for an admin are noted. Another caller gets 403 if the role that one of them requires, which
its contract says, is higher; else the route answers as before.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from mnemesh_kit.access import rules_of
from mnemesh_kit.call_context import Role, current_correlation_id, current_principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.interceptors import Call, Pipeline
from mnemesh_testkit.fakes.issuer import FakeIssuer
from mnemesh_testkit.mesh.in_process import MeshThread
from mnemesh_testkit.timeouts import scaled

from .conftest import bearer, token
from .resources import agent_state, everything

OPENAI = (
    ("GET", "/v1/models", None),
    ("GET", f"/v1/models/{new_id('agent')}", None),
    ("POST", "/v1/chat/completions", {"model": new_id("agent"), "messages": [{"role": "user", "content": "Hi"}]}),
    ("POST", "/v1/responses", {"model": new_id("agent"), "input": "Hi"}),
    ("POST", "/v1/embeddings", {"model": "mnemesh/hash-64", "input": "Hi"}),
)
BROWSERS = "/v1/tools/mcp/oauth/callback"
"""The route that needs no token: the state in the request proves that it may end an authorization."""
STREAMED = "/v1/tools/mcp/servers/connect"
"""The route that answers with events before its first RPC. The refusal is one of them."""
WITHOUT_RPC = (
    *("/v1/orgs/", "/v1/admin/", "/v1/users/", "/v1/health/", "/v1/ready/", BROWSERS),
    "/v1/agents/import",  # its body is a form
)
UNSUPPORTED = 501
SECRET = "heronKp4tRs9"
KINDS = {"conversation_id": "conv", "job_id": "job"}
"""The prefixes of ids that the document does not say."""
GIVEN = {
    "messages": [{"role": "user", "content": "Hi"}],
    "passages": [{"text": "Hi"}],
    "source_code": 'def ping() -> str:\n    """Answers."""\n    return "pong"\n',
    "config": {"mcp_server_type": "sse", "server_url": "http://127.0.0.1:1"},
    "server_url": "http://127.0.0.1:1",
    "message_type": "user_message",
    "content": "Hi",
    "requires_approval": True,
    "scheduled_at": 4_000_000_000_000,
}
"""Fields of bodies, also optional ones, without which a request ends before its first RPC."""
Calls = dict[str, list[tuple[str, grpc.StatusCode]]]
Request = tuple[str, str, Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The RPCs that the gateway calls for each request, by its correlation id, with their status."""
    noted: Calls = {}
    report = Pipeline._report

    def note(pipeline: Pipeline, call: Call, seconds: float) -> None:
        if current_principal().role is not Role.SERVICE and call.method in rules_of():
            noted.setdefault(current_correlation_id(), []).append((call.method, call.code))
        report(pipeline, call, seconds)

    monkeypatch.setattr(Pipeline, "_report", note)
    return noted


@pytest.fixture
def http(guarded: MeshThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{guarded.mesh.addresses['gateway']}", timeout=scaled(60)) as client:
        yield client


def routes(http: httpx.Client, id_of: Callable[[str], str] = new_id) -> list[Request]:
    """Returns a request for each route: with ids of nothing, or others by their prefixes, and the least body."""
    document = http.get("/openapi.json", headers=bearer(Role.ADMIN)).json()
    schemas = document["components"]["schemas"]
    found: list[Request] = list(OPENAI)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            filled = path
            if any(parameter["in"] == "query" and parameter["required"] for parameter in operation["parameters"]):
                filled += f"?agent_id={id_of('agent')}&query=hello"
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    kind = KINDS.get(parameter["name"], "x")
                    prefix = parameter["schema"].get("pattern", f"^{kind}-").removeprefix("^").partition("-")[0]
                    filled = filled.replace(f"{{{parameter['name']}}}", id_of(prefix))
            found.append((method.upper(), filled, None if body is None else least(body, schemas)))
    return found


def least(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """Returns the smallest value of a schema."""
    if "$ref" in schema:
        return least(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "default" in schema:
        return schema["default"]
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return least(schema[name][0], schemas)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        needed = {name: least(properties[name], schemas) for name in schema.get("required", ())}
        return needed | {name: value for name, value in GIVEN.items() if name in properties}
    return {"array": [], "string": "hello", "integer": 1, "number": 1, "boolean": False}.get(str(kind))


@pytest.mark.timeout(scaled(120))
def test_every_route_needs_the_roles_of_its_rpcs(http: httpx.Client, calls: Calls, issuer: FakeIssuer) -> None:
    rules, number = rules_of(), itertools.count()

    def send(request: Request, headers: dict[str, str]) -> tuple[httpx.Response, list[tuple[str, grpc.StatusCode]]]:
        method, path, body = request
        correlation_id = f"route-{next(number)}"
        answer = http.request(method, path, json=body, headers={**headers, "X-Request-Id": correlation_id})
        return answer, calls.get(correlation_id, [])

    tried, unread = 0, []
    for request in routes(http):
        answer, made = send(request, bearer(Role.ADMIN))
        assert answer.status_code not in (401, 403), (request, answer.text)
        if not made:
            known = answer.status_code == UNSUPPORTED or "no longer supported" in answer.text
            if not known and not request[1].startswith(WITHOUT_RPC):
                unread.append((request, answer.text))
            continue
        if request[1] in (BROWSERS, STREAMED):
            continue
        needed = max((rules[method].role for method, _ in made), key=list(Role).index)
        for role in (Role.READER, Role.WRITER):
            if role.covers(needed):
                continue
            refused, seen = send(request, bearer(role))
            shown = (role, needed, request, refused.text, seen)
            assert refused.status_code == 403, shown
            assert seen[-1][1] is grpc.StatusCode.PERMISSION_DENIED, shown
            assert f"The caller has the role {role.value}" in json.dumps(refused.json()), shown
            done = [method for method, code in seen if code is grpc.StatusCode.OK and rules[method].role is Role.WRITER]
            assert done == [], f"{shown}: a part is done before the refusal"
            tried += 1
    assert tried > 50
    assert len(unread) < 5, f"These requests are refused before the first RPC. Add to GIVEN what they need: {unread}"
    assert http.get("/v1/agents/").status_code == 401
    assert http.get("/v1/agents/", headers={"Authorization": f"Bearer {issuer.token()}"}).status_code == 200


@pytest.mark.timeout(scaled(120))
def test_token_of_an_agent_reaches_nothing_of_others_over_any_route(guarded: MeshThread, http: httpx.Client) -> None:
    theirs = guarded.run(everything(guarded.mesh, SECRET))
    kinds = {"conv": "conversation", "source": "folder", "job": "run"}
    ids = {prefix: theirs[kind][0] for prefix, kind in kinds.items()} | {
        kind: found[0] for kind, found in theirs.items()
    }

    def state() -> str:
        return str(guarded.run(agent_state(guarded.mesh.client, theirs["agent"][0])))

    before, headers = state(), {"Authorization": f"Bearer {token(Role.ADMIN, agents=frozenset({new_id('agent')}))}"}
    for method, path, body in routes(http, lambda prefix: ids.get(prefix) or new_id(prefix)):
        answer = http.request(method, path, json=body, headers=headers)
        shown = (method, path, answer.status_code, answer.text)
        assert SECRET not in answer.text, shown
        assert answer.status_code < 500 or answer.status_code == UNSUPPORTED, shown
        named = [id_ for id_ in ids.values() if id_ in path]
        assert answer.status_code >= 400 or not named or path == BROWSERS, shown
    assert state() == before


def test_token_of_an_agent_talks_to_this_agent_only(guarded: MeshThread, http: httpx.Client) -> None:
    async def create() -> list[str]:
        create = guarded.mesh.client.agents.create
        return [(await create(name, blocks={"human": "Ada"})).id for name in ("mine", "other")]

    mine, other = guarded.run(create())
    http.headers["Authorization"] = f"Bearer {token(Role.WRITER, agents=frozenset({mine}))}"
    assert {model["id"] for model in http.get("/v1/models").json()["data"]} == {mine, "mine"}
    roles = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    for model in (mine, "mine"):
        for messages in (roles, roles[1:]):
            answer = http.post("/v1/chat/completions", json={"model": model, "messages": messages})
            assert answer.json()["choices"][0]["message"]["content"], answer.text
    statuses = [
        http.post("/v1/chat/completions", json={"model": model, "messages": roles}).status_code
        for model in (other, "other")
    ]
    assert statuses == [403, 404]
    letta = {"messages": [{"role": "user", "content": "Hi"}]}
    assert [http.post(f"/v1/agents/{id_}/messages", json=letta).status_code for id_ in (mine, other)] == [200, 403]
    state = http.get(f"/v1/agents/{mine}").json()
    assert [agent["id"] for agent in http.get("/v1/agents/").json()] == [mine]
    assert {tool["name"] for tool in state["tools"]} >= {"memory_insert"}
    block = http.get(f"/v1/blocks/{state['memory']['blocks'][0]['id']}")
    assert block.json()["value"] == state["memory"]["blocks"][0]["value"]
    run = http.get("/v1/runs/").json()[0]
    assert run["agent_id"] == mine
    for part in ("messages", "steps", "metrics"):
        assert http.get(f"/v1/runs/{run['id']}/{part}").status_code == 200, part
