"""Texts that rows are searched for: each has a bound below that of the database's patterns, and the error names it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from mnemesh_kit.access import rules_of
from mnemesh_kit.call_context import Role
from mnemesh_kit.retries import service_descriptor
from mnemesh_testkit.mesh.in_process import Mesh

TEXTS = ("a" * 60_000, "%" * 30_000, "\N{GREEK SMALL LETTER IOTA WITH DIALYTIKA AND TONOS}" * 9_000)
"""Too long for a pattern as it is, with its marks escaped, and with its case folded."""


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with Mesh(tmp_path, in_memory=True) as running:
        yield running


def searches(message: Descriptor, above: tuple[FieldDescriptor, ...] = ()) -> list[tuple[FieldDescriptor, ...]]:
    """Returns the paths of the texts of a request that rows are searched for."""
    found = []
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_STRING and field.name.endswith("_search"):
            found.append((*above, field))
        elif field.name == "filter":
            found += searches(field.message_type, (*above, field))
    return found


async def answer(call: Callable[..., Awaitable[Any]], request: Any) -> tuple[grpc.StatusCode | None, str]:
    """Returns the code and the text of the error with which a call ends; None and no text if it has an answer."""
    try:
        await call(request.SerializeToString(), timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return None, ""


async def test_text_that_no_pattern_can_have_is_refused_by_its_field(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create("ada", model="mnemesh/rehearsal")
    tried = 0
    async with grpc.aio.insecure_channel(mesh.addresses["orchestrator"]) as channel:
        for method, rule in rules_of().items():
            _, service, name = method.split("/")
            descriptor = service_descriptor(service)
            if rule.role is Role.SERVICE or descriptor is None or not name.startswith(("List", "Count")):
                continue
            given = descriptor.methods_by_name[name].input_type
            call: Callable[..., Awaitable[Any]] = channel.unary_unary(method)
            for path in searches(given):
                for text in TEXTS:
                    request = GetMessageClass(given)()
                    if "agent_id" in given.fields_by_name:
                        request.agent_id = agent.id
                    owner: Any = request
                    for field in path[:-1]:
                        owner = getattr(owner, field.name)
                    setattr(owner, path[-1].name, text)
                    code, details = await answer(call, request)
                    assert code is grpc.StatusCode.INVALID_ARGUMENT or (code is None and len(text) < 10_000), name
                    assert path[-1].name in details or code is None, (name, details)
                    tried += 1
    assert tried >= 30
