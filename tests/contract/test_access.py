"""Who may call what: every RPC with every kind of caller, as the option `access` of the RPC says.

A call carries bytes that are no request. A caller who may call the RPC learns that; another one is refused before.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from mnemesh_kit.access import RpcRule, named, rules_of
from mnemesh_kit.call_context import Role
from mnemesh_kit.ids import new_id
from mnemesh_kit.retries import service_descriptor
from mnemesh_testkit.fakes.issuer import FakeIssuer
from mnemesh_testkit.fuzzing.contract import methods, new_request, reads, reason_of
from mnemesh_testkit.mesh.in_process import MeshThread
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

from .conftest import REVOKED, token
from .resources import agent_state, everything
from .test_tenancy import places
from .valid_requests import Ids, least_request

SECRET = "heronKp4tRs9"
ADMIN_READS = {
    "CheckProvider",
    "TestMcpServer",
    "ListAuditEntries",
    "GetWebhook",
    "ListWebhooks",
    "ListWebhookDeliveries",
}
"""They send the keys of the organization to a server, show who did what, or show URLs that contain secrets."""
COSTLY_READS = {"GenerateText", "EmbedTexts", "SearchWeb", "FetchWebpage"}
"""They call a model or other servers with each call."""


def as_bearer(token: str | None) -> list[tuple[str, str]]:
    return [] if token is None else [("authorization", f"Bearer {token}")]


def expected(rule: RpcRule, role: Role | None, *, is_limited: bool = False) -> grpc.StatusCode:
    if role is None:
        return grpc.StatusCode.UNAUTHENTICATED
    may_call = role.covers(rule.role) and (bool(rule.agent_paths) or rule.is_open_to_limited or not is_limited)
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
        assert not (rule.agent_paths and method.client_streaming), (
            f"{method.full_name}: only its first request is known"
        )


def test_refusal_names_the_roles(guarded: MeshThread) -> None:
    stub: Any = import_module("mnemesh.tools.v1.tools_service_pb2_grpc")
    request = import_module("mnemesh.tools.v1.tools_service_pb2").CreateToolRequest()
    with grpc.insecure_channel(guarded.mesh.addresses["tools"]) as channel, pytest.raises(grpc.RpcError) as refused:
        stub.ToolServiceStub(channel).CreateTool(request, metadata=as_bearer(token(Role.WRITER)))
    error: Any = refused.value
    assert "requires the role admin. The caller has the role writer" in error.details()
    assert reason_of(error) == "PERMISSION_DENIED"


def test_writer_defines_no_tool_by_an_agent_that_it_creates(guarded: MeshThread) -> None:
    stub: Any = import_module("mnemesh.agents.v1.agents_service_pb2_grpc")
    rpc: Any = import_module("mnemesh.agents.v1.agents_service_pb2")
    source = 'def of_writer() -> str:\n    """Answers."""\n    return "pong"\n'
    request = rpc.CreateAgentRequest(agent={"name": "n", "type": "AGENT_TYPE_LETTA_V1"}, tool_sources=[source])
    with grpc.insecure_channel(guarded.mesh.addresses["orchestrator"]) as channel:
        create = stub.AgentServiceStub(channel).CreateAgent
        with pytest.raises(grpc.RpcError, match="tool_sources requires the role admin") as refused:
            create(request, timeout=30, metadata=as_bearer(token(Role.WRITER)))
        assert reason_of(refused.value) == "PERMISSION_DENIED"
        made = create(request, timeout=30, metadata=as_bearer(token(Role.ADMIN))).agent
    assert "of_writer" in [tool.name for tool in made.tools]


@pytest.fixture(scope="module")
def agents(guarded: MeshThread) -> tuple[Ids, Ids]:
    """The resources of two agents of an organization. Those of the second one contain the secret."""

    async def populate(word: str) -> Ids:
        found = await everything(guarded.mesh, word)
        await (await guarded.mesh.client.agents.get(found["agent"][0])).files.attach(found["folder"][0])
        return found

    return guarded.run(populate("mat")), guarded.run(populate(SECRET))


def test_token_of_an_agent_reaches_what_is_of_it_and_nothing_of_another_agent(
    guarded: MeshThread, agents: tuple[Ids, Ids]
) -> None:
    mine, theirs = agents
    bearer = as_bearer(token(Role.ADMIN, agents=frozenset(mine["agent"])))
    before = state(guarded, theirs)
    rules = rules_of()
    ends = ("Delete", "Detach")
    for method in sorted(methods(), key=lambda each: [each.name.startswith(end) for end in reversed(ends)]):
        owner, module = PROTO_SERVICES[method.containing_service.full_name]
        rule = rules[f"/{method.containing_service.full_name}/{method.name}"]
        if not rule.agent_paths or method.name == "DeleteAgent":
            continue
        with grpc.insecure_channel(guarded.mesh.addresses[owner]) as channel:
            stub = getattr(import_module(module), f"{method.containing_service.name}Stub")(channel)
            for path in rule.agent_paths:
                request = own_request(method, rule, mine)
                name(request, path, theirs)
                assert_refused(ask(stub, method, request, bearer)[0], f"{method.full_name} with another agent's {path}")
            error, answer = ask(stub, method, new_request(method), bearer)
            if any(path[-1] == "agent_ids" for path in rule.agent_paths) and rule.reads:
                assert SECRET not in answer + str(error), method.full_name  # a list becomes one of the agent
            else:
                assert_refused(error, method.full_name)
            for where, kind, put in places(method):
                if tuple(where.split(".")) in rule.agent_paths or kind not in theirs:
                    continue
                request = own_request(method, rule, mine)
                put(request, theirs[kind][0])
                error, answer = ask(stub, method, request, bearer)
                assert SECRET not in answer + str(error), f"{method.full_name} with another agent's {where}"
            error, answer = ask(stub, method, own_request(method, rule, mine), bearer)
            is_refused = error is not None and error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert not is_refused, f"{method.full_name}: {error}"
            assert SECRET not in answer + str(error), method.full_name
    assert state(guarded, theirs) == before


def assert_refused(error: Any, shown: str) -> None:
    assert error is not None, shown
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED, f"{shown}: {error}"


def own_request(method: Any, rule: RpcRule, mine: Ids) -> Any:
    """Returns a request that names what is of the agent."""
    request = least_request(method, mine)
    if not any(named(request, path) for path in rule.agent_paths):
        name(request, rule.agent_paths[0], mine)
    return request


def name(request: Any, path: Sequence[str], ids: Ids) -> None:
    """Sets a field to the id of a resource of its kind."""
    for part in path[:-1]:
        request = getattr(request, part)
        request = request if isinstance(request, Message) else request.add()
    field = request.DESCRIPTOR.fields_by_name[path[-1]]
    kind = (
        field.containing_type.name.lower() if field.name == "id" else field.name.removesuffix("s")[:-3].split("_")[-1]
    )
    if field.is_repeated:
        getattr(request, field.name)[:] = ids[kind][:1]
    else:
        setattr(request, field.name, ids[kind][0])


def test_token_of_an_agent_reads_what_others_hold_too_and_changes_it_only_through_its_agent(
    guarded: MeshThread,
) -> None:
    client = guarded.mesh.client

    async def share() -> tuple[str, str]:
        one, other = [await client.agents.create(name) for name in ("one", "two")]
        block = await client.blocks.create("team", "Ada", agent_ids=[one.id, other.id])
        return one.id, block.id

    agent_id, block_id = guarded.run(share())
    rpc: Any = import_module("mnemesh.blocks.v1.blocks_service_pb2")
    bearer = as_bearer(token(Role.WRITER, agents=frozenset({agent_id})))
    update = rpc.UpdateBlockRequest(block={"id": block_id, "value": "Ben"}, update_mask={"paths": ["value"]})
    edit = {"agent_id": agent_id, "label": "team", "author": {"owner": {}}, "append": {"text": "Cy"}}
    with grpc.insecure_channel(guarded.mesh.addresses["blocks"]) as channel:
        blocks = import_module("mnemesh.blocks.v1.blocks_service_pb2_grpc").BlockServiceStub(channel)
        for call, request in (
            (blocks.UpdateBlock, update),
            (blocks.DeleteBlock, rpc.DeleteBlockRequest(block_id=block_id)),
            (blocks.CreateBlock, rpc.CreateBlockRequest(block={"label": "x"})),
        ):
            with pytest.raises(grpc.RpcError, match="must name what is of agents of the token"):
                call(request, timeout=30, metadata=bearer)
        assert blocks.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=30, metadata=bearer).block.value == "Ada"
        edited = blocks.EditBlock(rpc.EditBlockRequest(**edit), timeout=30, metadata=bearer).block
        assert edited.value.split() == ["Ada", "Cy"]
        blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=agent_id, block_id=block_id), timeout=30, metadata=bearer)
        with pytest.raises(grpc.RpcError, match="must name what is of agents of the token"):
            blocks.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=30, metadata=bearer)
        own = rpc.CreateBlockRequest(block={"label": "own"}, agent_ids=[agent_id])
        block_id = blocks.CreateBlock(own, timeout=30, metadata=bearer).block.id
        delete = rpc.DeleteBlockRequest(block_id=block_id, request_id=new_id("req"))
        assert [blocks.DeleteBlock(delete, timeout=30, metadata=bearer) for _ in range(2)], "a repeat has its result"


def test_reader_sees_no_urls_that_are_called(guarded: MeshThread, agents: tuple[Ids, Ids]) -> None:
    stub: Any = import_module("mnemesh.agents.v1.runs_service_pb2_grpc")
    rpc: Any = import_module("mnemesh.agents.v1.runs_service_pb2")
    url = "http://127.0.0.1:1/secret"
    message = {"content": [{"text": {"text": "Hi"}}]}
    start = rpc.StartRunRequest(agent_id=agents[1]["agent"][0], messages=[message], config={"callback_url": url})
    with grpc.insecure_channel(guarded.mesh.addresses["orchestrator"]) as channel:
        runs = stub.RunServiceStub(channel)
        run = runs.StartRun(start, timeout=30, metadata=as_bearer(token(Role.WRITER))).run
        seen = {
            role: runs.GetRun(rpc.GetRunRequest(run_id=run.id), timeout=30, metadata=as_bearer(token(role))).run
            for role in (Role.READER, Role.WRITER)
        }
    assert run.config.callback_url == seen[Role.WRITER].config.callback_url == url
    assert url not in str(seen[Role.READER])


def test_token_of_an_agent_names_only_senders_of_its_agents(guarded: MeshThread, agents: tuple[Ids, Ids]) -> None:
    mine, theirs = agents
    bearer = as_bearer(token(Role.ADMIN, agents=frozenset(mine["agent"])))
    senders = [theirs["identity"][0], theirs["agent"][0], new_id("identity"), "ada"]
    for method in methods():
        paths = rules_of()[f"/{method.containing_service.full_name}/{method.name}"].used_paths
        owner, module = PROTO_SERVICES[method.containing_service.full_name]
        for path in paths:
            with grpc.insecure_channel(guarded.mesh.addresses[owner]) as channel:
                stub = getattr(import_module(module), f"{method.containing_service.name}Stub")(channel)
                for sender_id in [*senders, mine["identity"][0]]:
                    request = least_request(method, mine)
                    messages = getattr(request, path[0]) if len(path) == 2 else request.schedule.messages
                    (messages[0] if messages else messages.add()).sender_id = sender_id
                    error, _ = ask(stub, method, request, bearer)
                    # Recall knows no identities: a limited caller writes no message in the name of one.
                    if sender_id in senders or owner == "recall":
                        assert_refused(error, f"{method.full_name} with {sender_id}")
                    else:
                        assert error is None or error.code() is not grpc.StatusCode.PERMISSION_DENIED, error


def test_scopes_of_memories_that_name_no_agent_are_not_of_an_agent() -> None:
    rpc: Any = import_module("mnemesh.recall.v1.episodes_service_pb2")
    agent_id = new_id("agent")
    request = rpc.ListFactsRequest(filter={"scopes": [{"agent_id": agent_id}, {"name": "sales"}]})
    assert named(request, ("filter", "scopes", "agent_id")) == [agent_id, ""]


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
    return guarded.run(agent_state(guarded.mesh.client, theirs["agent"][0]))  # type: ignore[no-any-return]
