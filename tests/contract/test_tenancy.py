"""Resources of another organization are not found: every RPC that names a resource is called with a foreign id.

The calls come from the descriptors, so that an RPC cannot be forgotten: one that is answered and names a thing of a
known kind is called, with one foreign id at a time beside ids of the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1.episodes_service_pb2 import CommitEpisodeRequest
from mnemesh.recall.v1.messages_service_pb2 import GetContextRequest
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import ORGANIZATION_KEY, Principal, as_principal
from mnemesh_testkit.fuzzing.contract import new_request, reads, reason_of, service_of
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES
from mnemesh_testkit.timeouts import scaled

from .conftest import MeshThread, population

SECRET = "heronKp4tRs9"
OTHER = Principal(new_id("org"), new_id("user"))
Ids = Mapping[str, Sequence[str]]

# Whose ids a service checks. Of the others it knows nothing but what its own organization did under them.
OWN = {
    "orchestrator": {
        "agent",
        "conversation",
        "run",
        "step",
        "block",
        "tool",
        "archive",
        "message",
        "identity",
        "provider",
    },
    "blocks": {"block"},
    "recall": {"agent", "conversation", "message", "episode", "fact"},
    "archival": {"archive", "passage"},
    "tools": {"tool"},
}
# An empty result is a valid response to these: a foreign resource is simply not among the results.
MAY_BE_EMPTY = ("List", "Count", "Search", "BatchGet", "Delete", "Erase", "Cancel", "GetMessages")
NO_THINGS = {
    "request_id": "chosen by the caller",
    "execution_id": "chosen by the caller",
    "tool_call_id": "chosen by a provider",
    "sender_id": "an identity or an agent; recall compares it with messages of the organization",
    "turn_id": "chosen by the importing client",
    "turn_ids": "chosen by the importing client",
    "approval_request_id": "the call id within a conversation, which is a field of the same request",
    "folder_ids": "UNIMPLEMENTED",
    "folder_id": "UNIMPLEMENTED",
    "file_id": "UNIMPLEMENTED",
    "group_id": "UNIMPLEMENTED",
    "mcp_server_id": "UNIMPLEMENTED",
    "project_id": "only carried",
    "template_id": "only carried",
    "base_template_id": "only carried",
    "deployment_id": "only carried",
    "entity_id": "only carried",
}
# The required fields of requests, in addition to ids. <kind> is the id of the caller's resource.
MORE = {
    "agents.v1.AgentService.CreateAgent": 'agent { name: "n" type: AGENT_TYPE_LETTA_V1 }',
    "agents.v1.AgentService.UpdateAgent": 'agent { id: "<agent>" name: "n" } update_mask { paths: "name" }',
    "agents.v1.AgentService.SetToolApproval": 'tool_name: "memory_insert"',
    "agents.v1.AgentService.RunTool": (
        'tool_name: "memory_insert" arguments: "{\\"label\\": \\"law\\", \\"new_str\\": \\"x\\"}"'
    ),
    "agents.v1.RunService.SendMessage": 'messages { content { text { text: "Hi" } } }',
    "agents.v1.RunService.StartRun": 'messages { content { text { text: "Hi" } } }',
    "agents.v1.RunService.AnswerApproval": 'decisions { tool_call_id: "call_1" approve {} }',
    "agents.v1.RunService.CancelRuns": 'runs { run_ids: "<run>" }',
    "agents.v1.ConversationService.CreateConversation": 'conversation { agent_id: "<agent>" }',
    "agents.v1.ConversationService.UpdateConversation": (
        'conversation { id: "<conversation>" summary: "s" } update_mask { paths: "summary" }'
    ),
    "agents.v1.ModelService.UpdateProvider": (
        'provider { id: "<provider>" base_url: "http://127.0.0.1:1" } update_mask { paths: "base_url" }'
    ),
    "agents.v1.IdentityService.CreateIdentity": 'identity { identifier_key: "k" name: "n" type: IDENTITY_TYPE_USER }',
    "agents.v1.IdentityService.UpdateIdentity": (
        'identity { id: "<identity>" name: "x" } update_mask { paths: "name" }'
    ),
    "agents.v1.IdentityService.UpsertIdentityProperties": 'properties { key: "a" text: "b" }',
    "blocks.v1.BlockService.CreateBlock": 'block { label: "made" }',
    "blocks.v1.BlockService.UpdateBlock": 'block { id: "<block>" value: "x" } update_mask { paths: "value" }',
    "blocks.v1.BlockService.EditBlock": 'label: "law" append { text: "x" } author { owner {} }',
    "blocks.v1.BlockService.RevertBlock": "undo {} author { owner {} }",
    "recall.v1.MessageService.CreateContext": (
        'conversation_id: "<new-conv>" '
        'messages { id: "<new-message>" role: ROLE_SYSTEM content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.CommitStep": (
        'lease { run_id: "<new-run>" epoch: 99 } base_version: 1 '
        'messages { id: "<new-message>" role: ROLE_USER content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.ReplaceContext": (
        'lease { run_id: "<new-run>" epoch: 99 } base_version: <version> message_ids: "<message>"'
    ),
    "recall.v1.MessageService.ForkContext": (
        'conversation_id: "<new-conv>" '
        'system_message { id: "<new-message>" agent_id: "<agent>" role: ROLE_SYSTEM content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.AppendMessages": (
        'messages { id: "<new-message>" role: ROLE_USER content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.UpdateMessage": (
        'message { id: "<message>" content { text { text: "x" } } } update_mask { paths: "content" }'
    ),
    "recall.v1.EpisodeService.CommitEpisode": (
        'scope { agent_id: "<agent>" } episode { summary: "s" } lease { run_id: "<new-run>" epoch: 99 }'
    ),
    "recall.v1.EpisodeService.UpdateEpisode": (
        'episode { id: "<episode>" summary: "x" } update_mask { paths: "summary" }'
    ),
    "recall.v1.EpisodeService.CreateFact": 'fact { text: "x" scope { agent_id: "<agent>" } }',
    "recall.v1.EpisodeService.UpdateFact": 'fact { id: "<fact>" metadata: "{}" } update_mask { paths: "metadata" }',
    "recall.v1.EpisodeService.SupersedeFact": 'operation { fact_id: "<fact>" fact { text: "x" } }',
    "recall.v1.EpisodeService.InvalidateFact": 'operation { fact_id: "<fact>" }',
    "recall.v1.TraceService.ImportTraces": 'header { agent_id: "<agent>" conversation_id: "<conversation>" }',
    "archival.v1.ArchiveService.CreateArchive": 'archive { name: "made" }',
    "archival.v1.ArchiveService.UpdateArchive": 'archive { id: "<archive>" name: "x" } update_mask { paths: "name" }',
    "archival.v1.PassageService.InsertPassages": 'passages { text: "x" }',
    "archival.v1.PassageService.UpdatePassage": 'passage { id: "<passage>" text: "x" } update_mask { paths: "text" }',
    "tools.v1.ToolService.UpdateTool": 'tool { id: "<tool>" description: "x" } update_mask { paths: "description" }',
    "tools.v1.ExecutionService.ExecuteTool": 'arguments: "{}"',
}
Place = Callable[[Any, str], None]


@pytest.fixture(scope="module")
def theirs(threaded_mesh: MeshThread) -> Ids:
    """The resources of another organization, which all contain the secret."""
    return threaded_mesh.run(everything(threaded_mesh.mesh, SECRET))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def ours(threaded_mesh: MeshThread) -> Ids:
    """The resources of the caller."""

    async def populate() -> Ids:
        with as_principal(OTHER):
            return await everything(threaded_mesh.mesh, "mat")

    return threaded_mesh.run(populate())  # type: ignore[no-any-return]


async def everything(mesh: Mesh, word: str) -> Ids:
    """Creates a resource of every kind, with the word in it."""
    found = await population(mesh, word)
    scope = episodes_pb2.MemoryScope(agent_id=found["agent"][0])
    fact = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text=f"{word} is true"))
    episode = episodes_pb2.Episode(summary=f"of {word}")
    done = await mesh.stubs["mnemesh.recall.v1.EpisodeService"].CommitEpisode(
        CommitEpisodeRequest(scope=scope, episode=episode, operations=[fact])
    )
    window = GetContextRequest(conversation_id=found["conversation"][0])
    version = (await mesh.stubs.messages.GetContext(window)).context.version
    identity = await mesh.client.identities.upsert(word, f"Of the {word}", agent_ids=found["agent"])
    place = f"http://127.0.0.1:1/{word}"
    provider = await mesh.client.providers.create(f"of-{word.lower()}", "vllm", api_key=word, base_url=place)
    return {
        **found,
        "episode": [done.episode.id],
        "fact": [done.facts[0].id],
        "identity": [identity.id],
        "provider": [provider.id],
        "version": [str(version)],
    }


@pytest.mark.timeout(scaled(300))
def test_resources_of_another_organization_are_not_found(
    service: str, grpc_channel: grpc.Channel, threaded_mesh: MeshThread, ours: Ids, theirs: Ids
) -> None:
    before = state(threaded_mesh, theirs)
    stub = getattr(import_module(PROTO_SERVICES[service][1]), f"{service.rpartition('.')[2]}Stub")(grpc_channel)
    owner = PROTO_SERVICES[service][0]
    for method in service_of(service).methods:
        for where, kind, put in places(method):
            is_foreign = kind not in OWN[owner] and not (reads(method) or method.name.startswith(MAY_BE_EMPTY))
            if kind not in theirs or is_foreign:
                continue
            request = base(method, ours)
            put(request, theirs[kind][0])
            shown = f"{method.full_name} with another organization's {where}"
            error, answer = ask(stub, method, request)
            if error is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                continue
            if error is not None and error.code() is grpc.StatusCode.NOT_FOUND:
                assert reason_of(error), shown
                assert SECRET not in str(error.details()), shown
                continue
            if kind not in OWN[owner]:
                assert error is None or error.code() is not grpc.StatusCode.INTERNAL, f"{shown}: {error}"
                assert SECRET not in answer + str(error), f"{shown} reveals a foreign resource"
                continue
            strict = not method.name.startswith(MAY_BE_EMPTY)
            assert error is None, f"{shown}: {error}\n{request}"
            assert not strict, f"{shown} is answered: {answer}"
            assert SECRET not in answer, f"{shown} reveals a foreign resource"
            foreign = {id_ for named, ids in theirs.items() for id_ in ids if named not in (kind, "version")}
            assert not [id_ for id_ in foreign if id_ in answer], f"{shown} reveals a foreign resource"
    assert state(threaded_mesh, theirs) == before, f"{service} changed a foreign resource"


def test_every_id_field_of_a_request_is_tried(service: str, theirs: Ids) -> None:
    for method in service_of(service).methods:
        for field in method.input_type.fields:
            if field.type == FieldDescriptor.TYPE_STRING and field.name.endswith(("_id", "_ids")):
                known = _kind(field, method) in theirs or field.name in NO_THINGS
                unanswered = field.name in ("after_id", "before_id") or service.endswith(
                    ("GroupService", "McpServerService")
                )
                assert known or unanswered, f"{method.full_name}.{field.name} is of no kind that is tried"


def places(method: MethodDescriptor) -> Iterator[tuple[str, str, Place]]:
    """Yields the fields of a request that name resources, with the kind of resource and a setter."""
    for field in method.input_type.fields:
        if field.type == FieldDescriptor.TYPE_STRING and (kind := _kind(field, method)):
            yield field.name, kind, _putting((), field)
        elif field.message_type is not None and not field.is_repeated and field.name != "lease":
            update = method.name.startswith("Update")
            for inner in field.message_type.fields:
                if inner.type != FieldDescriptor.TYPE_STRING or not (kind := _kind(inner, method)):
                    continue
                if field.name == "filter" or (inner.name == "id" and update) or _named(method, field, inner):
                    yield f"{field.name}.{inner.name}", kind, _putting((field.name,), inner)


def _named(method: MethodDescriptor, field: FieldDescriptor, inner: FieldDescriptor) -> bool:
    """Returns whether the required part of a request names a resource in this field."""
    request = text_format.Parse(MORE.get(method.full_name.removeprefix("mnemesh."), ""), new_request(method))
    return request.HasField(field.name) and bool(getattr(getattr(request, field.name), inner.name))


def _kind(field: FieldDescriptor, method: MethodDescriptor) -> str:
    """Returns the kind of resource that a field names, or ""."""
    if field.name in NO_THINGS:
        return ""
    if field.name in ("after_id", "before_id"):
        rows = [each for each in method.output_type.fields if each.is_repeated and each.message_type is not None]
        return rows[0].message_type.name.lower() if rows and rows[0].message_type is not None else ""
    if field.name == "id":
        return field.containing_type.name.lower() if field.containing_type is not None else ""
    name = field.name.removesuffix("s")
    return name.removesuffix("_id").rpartition("_")[2] if name.endswith("_id") else ""


def _putting(above: Sequence[str], field: FieldDescriptor) -> Place:
    def put(request: Any, value: str) -> None:
        target = request
        for name in above:
            target = getattr(target, name)
        if field.is_repeated:
            del getattr(target, field.name)[:]
            getattr(target, field.name).append(value)
        else:
            setattr(target, field.name, value)

    return put


def base(method: MethodDescriptor, ours: Ids) -> Any:
    """Returns a valid request with ids of the caller's resources."""
    text = MORE.get(method.full_name.removeprefix("mnemesh."), "")
    for kind, ids in ours.items():
        text = text.replace(f"<{kind}>", ids[0])
    for kind in ("message", "run", "conv"):
        text = text.replace(f"<new-{kind}>", new_id(kind))
    request = text_format.Parse(text, new_request(method))
    for field in method.input_type.fields:
        if field.name in ("after_id", "before_id") or field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
            continue
        kind = _kind(field, method)
        if kind == "step" and method.name == "CommitStep":
            request.step_id = new_id("step")
        elif kind in ours and not getattr(request, field.name) and not _chosen(request, field):
            setattr(request, field.name, ours[kind][0])
    return request


def _chosen(request: Any, field: FieldDescriptor) -> bool:
    """Returns whether another field of the same oneof is set, or the field is optional."""
    return field.containing_oneof is not None and (
        field.has_presence and request.WhichOneof(field.containing_oneof.name) is not None
    )


def ask(stub: Any, method: MethodDescriptor, request: Any) -> tuple[Any, str]:
    """Calls as the other organization. Returns the error or None, and the response as text."""
    try:
        answer = getattr(stub, method.name)(
            iter([request]) if method.client_streaming else request,
            timeout=60.0,
            metadata=[(ORGANIZATION_KEY, OTHER.organization_id)],
        )
        if not method.server_streaming:
            return None, str(answer)
        first = "".join(str(event) for _, event in zip(range(3), answer, strict=False))
        answer.cancel()
    except grpc.RpcError as error:
        return error, ""
    return None, first


def state(threaded_mesh: MeshThread, theirs: Ids) -> list[str]:
    """Returns everything that the other organization stores, as text."""
    mesh = threaded_mesh.mesh

    async def read() -> list[str]:
        (agent,) = [each async for each in mesh.client.agents.list() if each.id in theirs["agent"]]
        found = [str(agent.proto), str(await agent.memory())]
        found += [str(message) async for message in mesh.client.messages.list(agent_id=agent.id)]
        found += [str(passage) async for passage in agent.passages()]
        found += [str(tool) async for tool in mesh.client.tools.list()]
        found += [str(run) async for run in mesh.client.runs.list()]
        found += [str(provider) async for provider in mesh.client.providers.list()]
        return found

    return threaded_mesh.run(read())  # type: ignore[no-any-return]
