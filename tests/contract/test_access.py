"""Who may call what: every RPC with every kind of caller, as the option `access` of the RPC says.

A call carries bytes that are no request. A caller who may call the RPC learns that; another one is refused before.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import grpc
import pytest
from mnemesh_kit.access import RpcRule, rules_of
from mnemesh_kit.call_context import Role
from mnemesh_kit.ids import new_id
from mnemesh_kit.retries import service_descriptor
from mnemesh_testkit.fakes.issuer import FakeIssuer
from mnemesh_testkit.fuzzing.contract import methods, new_request, reads, reason_of
from mnemesh_testkit.mesh.in_process import MeshThread
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

from .conftest import REVOKED, token
from .resources import everything
from .test_tenancy import places
from .valid_requests import Ids, least_request

SECRET = "heronKp4tRs9"
ADMIN_READS = {"CheckProvider", "TestMcpServer", "ListAuditEntries"}
"""They send the keys of the organization to a server, or show who did what."""
COSTLY_READS = {"GenerateText", "EmbedTexts", "SearchWeb", "FetchWebpage"}
"""They call a model or other servers with each call."""


def as_bearer(token: str | None) -> list[tuple[str, str]]:
    return [] if token is None else [("authorization", f"Bearer {token}")]


def expected(rule: RpcRule, role: Role | None, *, is_limited: bool = False) -> grpc.StatusCode:
    if role is None:
        return grpc.StatusCode.UNAUTHENTICATED
    may_call = role.covers(rule.role) and (bool(rule.agent_path or rule.answer_path) or not is_limited)
    return grpc.StatusCode.INVALID_ARGUMENT if may_call else grpc.StatusCode.PERMISSION_DENIED


def test_every_rpc_is_open_to_the_callers_that_its_contract_names(guarded: MeshThread, issuer: FakeIssuer) -> None:
    limited = frozenset({new_id("agent")})
    callers = [
        ("reader", token(Role.READER), Role.READER, False),
        ("writer of an agent", token(Role.WRITER, agents=limited), Role.WRITER, True),
        ("writer", token(Role.WRITER), Role.WRITER, False),
        ("admin", token(Role.ADMIN), Role.ADMIN, False),
        ("writer of the issuer", issuer.token(), Role.WRITER, False),
        ("without a token", None, None, False),
        ("with an expired token", token(Role.ADMIN, -5), None, False),
        ("with a revoked token", token(Role.ADMIN, id_=REVOKED), None, False),
    ]
    addresses = guarded.mesh.addresses
    channels = {name: grpc.insecure_channel(addresses[name]) for name in addresses if name != "gateway"}
    wrong = []
    for method, rule in rules_of().items():
        owner = PROTO_SERVICES.get(method.split("/")[1], ("orchestrator",))[0]
        for name in {owner, "orchestrator"}:
            call = channels[name].unary_unary(method, bytes, bytes)
            for shown, bearer, role, is_limited in callers if name == owner else callers[:2]:
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"\xff\xff", timeout=30, metadata=as_bearer(bearer))
                error: Any = refused.value
                if error.code() is not expected(rule, role, is_limited=is_limited):
                    wrong.append(f"{method} {shown} at {name}: {error.code()} {error.details()}")
    for channel in channels.values():
        channel.close()
    assert wrong == []


def test_roles_agree_with_the_effects_of_the_rpcs() -> None:
    for path, rule in rules_of().items():
        service, _, name = path[1:].partition("/")
        descriptor = service_descriptor(service)
        assert descriptor is not None
        method = descriptor.methods_by_name[name]
        if rule.role is Role.READER:
            assert reads(method), f"{method.full_name} is for readers and changes something"
        elif reads(method):
            expected = Role.ADMIN if method.name in ADMIN_READS else Role.WRITER
            assert (rule.role, method.name in ADMIN_READS | COSTLY_READS) == (expected, True), method.full_name
        assert not (rule.agent_path and method.client_streaming), f"{method.full_name}: only its first request is known"
        if rule.answer_path:
            assert reads(method), f"{method.full_name} changes something before its answer is known"
            assert not method.server_streaming, method.full_name


def test_refusal_names_the_roles(guarded: MeshThread) -> None:
    stub: Any = import_module("mnemesh.tools.v1.tools_service_pb2_grpc")
    request = import_module("mnemesh.tools.v1.tools_service_pb2").CreateToolRequest()
    with grpc.insecure_channel(guarded.mesh.addresses["tools"]) as channel, pytest.raises(grpc.RpcError) as refused:
        stub.ToolServiceStub(channel).CreateTool(request, metadata=as_bearer(token(Role.WRITER)))
    error: Any = refused.value
    assert "requires the role admin. The caller has the role writer" in error.details()
    assert reason_of(error) == "PERMISSION_DENIED"


@pytest.fixture(scope="module")
def agents(guarded: MeshThread) -> tuple[Ids, Ids]:
    """The resources of two agents of an organization. Those of the second one contain the secret."""

    async def populate() -> tuple[Ids, Ids]:
        return await everything(guarded.mesh, "mat"), await everything(guarded.mesh, SECRET)

    return guarded.run(populate())  # type: ignore[no-any-return]


def test_token_of_an_agent_reaches_no_other_agent(guarded: MeshThread, agents: tuple[Ids, Ids]) -> None:
    mine, theirs = agents
    bearer = as_bearer(token(Role.ADMIN, agents=frozenset(mine["agent"])))
    before = state(guarded, theirs)
    rules, allowed = rules_of(), 0
    for method in methods():
        owner, module = PROTO_SERVICES[method.containing_service.full_name]
        rule = rules[f"/{method.containing_service.full_name}/{method.name}"]
        if not (rule.agent_path or rule.answer_path) or method.name == "DeleteAgent":
            continue
        with grpc.insecure_channel(guarded.mesh.addresses[owner]) as channel:
            stub = getattr(import_module(module), f"{method.containing_service.name}Stub")(channel)
            for where, kind, put in [("", "", None), *places(method)]:
                request = least_request(method, mine)
                if rule.agent_path:
                    name_agent(request, rule, mine)
                if put is not None and kind in theirs:
                    put(request, theirs[kind][0])
                error, answer = ask(stub, method, request, bearer)
                shown = f"{method.full_name} with another agent's {where}: {error}"
                assert SECRET not in answer + str(error), shown
                allowed += error is None
                if where and (where == ".".join(rule.agent_path) or rule.answer_path):
                    assert error is not None, shown
                    assert error.code() is grpc.StatusCode.PERMISSION_DENIED, shown
            error, _ = ask(stub, method, new_request(method), bearer)
            assert error is not None, method.full_name
            if rule.answer_path:
                continue
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED, method.full_name
    assert allowed > 40
    assert state(guarded, theirs) == before


def test_token_of_an_agent_does_not_connect_it_with_the_memory_of_others(
    guarded: MeshThread, agents: tuple[Ids, Ids]
) -> None:
    mine, theirs = agents
    stub: Any = import_module("mnemesh.agents.v1.agents_service_pb2_grpc")
    service: Any = import_module("mnemesh.agents.v1.agents_service_pb2")
    bearer = as_bearer(token(Role.ADMIN, agents=frozenset(mine["agent"])))
    scope, identities = {"memory_scope": "sales"}, theirs["identity"]
    own = {"id": mine["agent"][0]}
    compact = service.CompactConversationRequest(agent_id=own["id"], settings=scope, dry_run=True)
    with grpc.insecure_channel(guarded.mesh.addresses["orchestrator"]) as channel:
        calls = stub.AgentServiceStub(channel)
        for field, call, request in [
            ("memory_scope", calls.UpdateAgent, update(service, {**own, "compaction_settings": scope})),
            ("identity_ids", calls.UpdateAgent, update(service, {**own, "identity_ids": identities})),
            ("memory_scope", calls.CompactConversation, compact),
        ]:
            with pytest.raises(grpc.RpcError, match=f"{field} reaches the memory of other agents") as refused:
                call(request, timeout=30, metadata=bearer)
            assert reason_of(refused.value) == "PERMISSION_DENIED"
        calls.UpdateAgent(update(service, {**own, "identity_ids": []}), timeout=30, metadata=bearer)


def update(service: Any, agent: dict[str, Any]) -> Any:
    """Returns a request that updates the given fields of an agent."""
    return service.UpdateAgentRequest(agent=agent, update_mask={"paths": [name for name in agent if name != "id"]})


def name_agent(request: Any, rule: RpcRule, mine: Mapping[str, Any]) -> None:
    """Sets the field that names the agent of a request."""
    for name in rule.agent_path[:-1]:
        request = getattr(request, name)
    value = getattr(request, rule.agent_path[-1])
    if isinstance(value, str):
        setattr(request, rule.agent_path[-1], mine["agent"][0])
    else:
        value[:] = mine["agent"]


def ask(stub: Any, method: Any, request: Any, metadata: Any) -> tuple[Any, str]:
    """Calls a method. Returns the error or None, and the response as text."""
    try:
        answer = getattr(stub, method.name)(request, timeout=60.0, metadata=metadata)
        if not method.server_streaming:
            return None, str(answer)
        return None, "".join(str(event) for event in answer)
    except grpc.RpcError as error:
        return error, ""


def state(guarded: MeshThread, theirs: Ids) -> list[str]:
    """Returns everything that an agent has, as text."""
    client = guarded.mesh.client

    async def read() -> list[str]:
        agent = await client.agents.get(theirs["agent"][0])
        found = [str(agent.proto), str(await agent.memory())]
        found += [str(message) async for message in client.messages.list(agent_id=agent.id)]
        found += [str(passage) async for passage in agent.passages()]
        found += [str(run) async for run in client.runs.list(agent_id=agent.id)]
        return found

    return guarded.run(read())  # type: ignore[no-any-return]
