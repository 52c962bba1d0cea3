"""Resources of another organization are not found: every RPC that names a resource is called with a foreign id.

The calls come from the descriptors, so that an RPC cannot be forgotten: one that is answered and names a thing of a
known kind is called, with one foreign id at a time beside ids of the caller's own.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.call_context import ORGANIZATION_KEY, Principal, as_principal
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import methods, new_request, reads, reason_of, service_of
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES
from mnemesh_testkit.timeouts import scaled

from .conftest import MeshThread
from .resources import everything
from .valid_requests import ALTERNATIVES, LEAST, NO_THINGS, Ids, kind_of, least_request

SECRET = "heronKp4tRs9"
OTHER = Principal(new_id("org"), new_id("user"))

# Whose ids a service checks. Of the others it knows nothing but what its own organization did under them.
OWN = {
    "orchestrator": {
        "agent",
        "conversation",
        "run",
        "batch",
        "step",
        "block",
        "tool",
        "archive",
        "message",
        "identity",
        "budget",
        "provider",
        "schedule",
        "webhook",
        "group",
        "folder",
    },
    "blocks": {"block"},
    "recall": {"agent", "conversation", "message", "episode", "fact"},
    "archival": {"archive", "passage"},
    "tools": {"tool"},
    "files": {"folder", "file", "upload"},
}
# An empty result is a valid response to these: a foreign resource is simply not among the results.
MAY_BE_EMPTY = ("List", "Count", "Search", "BatchGet", "Delete", "Erase", "Cancel", "GetMessages")
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
            request = least_request(method, ours)
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


CHOSEN = {
    "CreateContext": ("messages", "message"),
    "CommitStep": ("messages", "message"),
    "ReplaceContext": ("new_messages", "message"),
    "ForkContext": ("system_message", "message"),
    "AppendMessages": ("messages", "message"),
    "InsertPassages": ("passages", "passage"),
}
"""Requests whose caller chooses the id of a new resource: method → the field of the resource, and its kind."""


@pytest.mark.parametrize("name", CHOSEN)
def test_id_used_by_another_organization_is_not_found_or_available(
    threaded_mesh: MeshThread, ours: Ids, theirs: Ids, name: str
) -> None:
    before = state(threaded_mesh, theirs)
    (method,) = (method for method in methods() if method.name == name)
    request = least_request(method, ours)
    where, kind = CHOSEN[name]
    chosen = getattr(request, where)
    if method.input_type.fields_by_name[where].is_repeated:
        chosen = chosen[0] if chosen else chosen.add(role=message_pb2.ROLE_USER)
    chosen.id = theirs[kind][0]
    owner, module = PROTO_SERVICES[method.containing_service.full_name]
    with grpc.insecure_channel(threaded_mesh.mesh.addresses[owner]) as channel:
        stub = getattr(import_module(module), f"{method.containing_service.name}Stub")(channel)
        error, answer = ask(stub, method, request)
    assert error is None or error.code() is grpc.StatusCode.NOT_FOUND, error
    assert SECRET not in answer + str(error)
    assert state(threaded_mesh, theirs) == before


def test_every_id_field_of_a_request_is_covered(service: str, theirs: Ids) -> None:
    for method in service_of(service).methods:
        for field in method.input_type.fields:
            if field.type == FieldDescriptor.TYPE_STRING and field.name.endswith(("_id", "_ids")):
                known = kind_of(field, method) in theirs or field.name in NO_THINGS
                unanswered = field.name in ("after_id", "before_id") or service.endswith("McpServerService")
                assert known or unanswered, f"{method.full_name}.{field.name} is of no kind that is tried"


def places(method: MethodDescriptor) -> Iterator[tuple[str, str, Place]]:
    """Yields the fields of a request that name resources, with the kind of resource and a setter."""
    for field in method.input_type.fields:
        if field.type == FieldDescriptor.TYPE_STRING and (kind := kind_of(field, method)):
            yield field.name, kind, _putting((), field)
        elif field.message_type is not None and not field.is_repeated and field.name != "lease":
            update = method.name.startswith("Update")
            for inner in field.message_type.fields:
                if inner.type != FieldDescriptor.TYPE_STRING or not (kind := kind_of(inner, method)):
                    continue
                if field.name == "filter" or (inner.name == "id" and update) or _named(method, field, inner):
                    yield f"{field.name}.{inner.name}", kind, _putting((field.name,), inner)


def _named(method: MethodDescriptor, field: FieldDescriptor, inner: FieldDescriptor) -> bool:
    """Returns whether the required part of a request names a resource in this field."""
    request = text_format.Parse(LEAST.get(method.full_name.removeprefix("mnemesh."), ""), new_request(method))
    return request.HasField(field.name) and bool(getattr(getattr(request, field.name), inner.name))


def _putting(above: Sequence[str], field: FieldDescriptor) -> Place:
    def put(request: Any, value: str) -> None:
        for name in ALTERNATIVES.get(field.full_name, ()):
            request.ClearField(name)
        target = request
        for name in above:
            target = getattr(target, name)
        if field.is_repeated:
            del getattr(target, field.name)[:]
            getattr(target, field.name).append(value)
        else:
            setattr(target, field.name, value)

    return put


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
        found += [str(group) async for group in mesh.client.groups.list()]
        found += [str(folder) async for folder in mesh.client.folders.list()]
        found += [str(file) async for file in mesh.client.files.list()]
        return found

    return threaded_mesh.run(read())  # type: ignore[no-any-return]
