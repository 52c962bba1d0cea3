"""GroupService over the wire: invalid requests are refused with their field and change nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument, NotFound, PageTokenInvalid
from mnemesh_kit.ids import derive_id

from .conftest import Wire, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
GROUP, ONE, TWO = derive_id("group", "a test"), derive_id("agent", "1"), derive_id("agent", "2")
BLOCK = derive_id("block", "a test")
CONFIG = "group.manager_config"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    """One service for all requests, which change nothing."""
    async with serving(tmp_path_factory.mktemp("orchestrator")) as wire:
        yield wire


def group(**fields: Any) -> rpc.CreateGroupRequest:
    return rpc.CreateGroupRequest(group=pb.Group(**{"agent_ids": [ONE], **fields}))


def managed(kind: str, **fields: Any) -> rpc.CreateGroupRequest:
    fields = fields if kind in ("round_robin", "swarm") else {"manager_agent_id": TWO, **fields}
    return group(manager_config={kind: fields})


BAD_GROUPS: list[tuple[rpc.CreateGroupRequest, str]] = [
    (rpc.CreateGroupRequest(), "group.agent_ids"),
    (group(agent_ids=["agent-1"]), "group.agent_ids"),
    (group(agent_ids=[ONE, TWO, ONE]), "group.agent_ids"),
    (group(agent_ids=[derive_id("agent", str(n)) for n in range(101)]), "group.agent_ids"),
    (group(agent_ids=[ONE, TWO], manager_config={"supervisor": {"manager_agent_id": TWO}}), "group.agent_ids"),
    (group(shared_block_ids=["plan"]), "group.shared_block_ids"),
    (group(shared_block_ids=[BLOCK, BLOCK]), "group.shared_block_ids"),
    (group(shared_block_ids=[derive_id("block", str(n)) for n in range(51)]), "group.shared_block_ids"),
    (group(description="a\0b"), "group.description"),
    (group(description="x" * 100_001), "group.description"),
    (group(metadata="[]"), "group.metadata"),
    (group(metadata='{"a": "\\ud800"}'), "group.metadata"),
    (group(provenance={"project_id": "a\0b"}), "group.provenance.project_id"),
    (managed("supervisor", manager_agent_id=""), f"{CONFIG}.supervisor.manager_agent_id"),
    (managed("dynamic", manager_agent_id="Ada"), f"{CONFIG}.dynamic.manager_agent_id"),
    (managed("sleeptime", manager_agent_id=GROUP), f"{CONFIG}.sleeptime.manager_agent_id"),
    (managed("round_robin", max_turns=0), f"{CONFIG}.round_robin.max_turns"),
    (managed("dynamic", max_turns=1001), f"{CONFIG}.dynamic.max_turns"),
    (managed("dynamic", termination_token=""), f"{CONFIG}.dynamic.termination_token"),
    (managed("dynamic", termination_token="a\nb"), f"{CONFIG}.dynamic.termination_token"),
    (managed("dynamic", termination_token="x" * 201), f"{CONFIG}.dynamic.termination_token"),
    (managed("sleeptime", sleeptime_agent_frequency=0), f"{CONFIG}.sleeptime.sleeptime_agent_frequency"),
    (managed("sleeptime", sleeptime_agent_frequency=-1), f"{CONFIG}.sleeptime.sleeptime_agent_frequency"),
    (managed("sleeptime", interval={"seconds": 59}), f"{CONFIG}.sleeptime.interval"),
    (managed("sleeptime", inactivity={"seconds": -60}), f"{CONFIG}.sleeptime.inactivity"),
    (managed("sleeptime", inactivity={"seconds": 366 * 86_400 + 1}), f"{CONFIG}.sleeptime.inactivity"),
    (managed("sleeptime", max_steps=0), f"{CONFIG}.sleeptime.max_steps"),
    (managed("voice_sleeptime", max_steps=1001), f"{CONFIG}.voice_sleeptime.max_steps"),
    (managed("voice_sleeptime", max_message_buffer_length=1), f"{CONFIG}.voice_sleeptime.max_message_buffer_length"),
    (managed("voice_sleeptime", max_message_buffer_length=15), f"{CONFIG}.voice_sleeptime.max_message_buffer_length"),
    (managed("voice_sleeptime", min_message_buffer_length=0), f"{CONFIG}.voice_sleeptime.min_message_buffer_length"),
    (managed("voice_sleeptime", min_message_buffer_length=30), f"{CONFIG}.voice_sleeptime.min_message_buffer_length"),
    (
        managed("voice_sleeptime", min_message_buffer_length=9, max_message_buffer_length=9),
        f"{CONFIG}.voice_sleeptime.min_message_buffer_length",
    ),
    (rpc.CreateGroupRequest(request_id="x" * 201), "request_id"),
]


@pytest.mark.parametrize(
    ("request_", "field"), BAD_GROUPS, ids=[f"{n}-{field}" for n, (_, field) in enumerate(BAD_GROUPS)]
)
async def test_invalid_group_is_refused(wire: Wire, request_: rpc.CreateGroupRequest, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.groups.CreateGroup(request_)
    assert raised.value.field == field
    assert field in raised.value.message
    assert (await wire.groups.CountGroups(rpc.CountGroupsRequest())).count == 0


async def test_agents_that_do_not_exist_are_named(wire: Wire) -> None:
    with pytest.raises(NotFound) as raised:
        await wire.groups.CreateGroup(group())
    assert raised.value.metadata == {"field": "group.agent_ids", "resource_id": ONE}


def updating(*paths: str, **fields: Any) -> rpc.UpdateGroupRequest:
    return rpc.UpdateGroupRequest(group=pb.Group(**{"id": GROUP, **fields}), update_mask=FieldMask(paths=paths))


BAD_CALLS: list[tuple[str, Any, str]] = [
    ("GetGroup", rpc.GetGroupRequest(), "group_id"),
    ("DeleteGroup", rpc.DeleteGroupRequest(group_id="group-1"), "group_id"),
    ("ResetGroupMessages", rpc.ResetGroupMessagesRequest(group_id=ONE), "group_id"),
    ("UpdateGroup", updating("description", id="x"), "group.id"),
    ("UpdateGroup", updating(), "update_mask"),
    ("UpdateGroup", updating("id"), "update_mask"),
    ("UpdateGroup", updating("last_processed_message_id"), "update_mask"),
    ("UpdateGroup", updating("provenance"), "update_mask"),
    ("UpdateGroup", updating("manager_config.round_robin"), "update_mask"),
    ("UpdateGroup", updating("manager_config.round_robin.termination_token"), "update_mask"),
    ("UpdateGroup", updating("manager_config.oracle.max_turns"), "update_mask"),
    (
        "UpdateGroup",
        updating("manager_config.dynamic.max_turns", "manager_config.round_robin.max_turns"),
        "update_mask",
    ),
    ("ListGroups", rpc.ListGroupsRequest(page_size=-1), "page_size"),
    ("ListGroups", rpc.ListGroupsRequest(order=9), "order"),
    ("ListGroups", rpc.ListGroupsRequest(order_by=9), "order_by"),
    ("ListGroups", rpc.ListGroupsRequest(filter={"group_ids": ["x"]}), "filter.group_ids"),
    ("ListGroups", rpc.ListGroupsRequest(filter={"agent_id": "x"}), "filter.agent_id"),
    ("CountGroups", rpc.CountGroupsRequest(filter={"manager_types": [0]}), "filter.manager_types"),
    ("CountGroups", rpc.CountGroupsRequest(filter={"project_id": "a\0b"}), "filter.project_id"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(), "group_id"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP, agent_id=""), "agent_id"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP, order_by=9), "order_by"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP, roles=[99]), "roles"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP, page_size=1001), "page_size"),
    ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP, start_time={"nanos": -1}), "start_time"),
]


@pytest.mark.parametrize(
    ("method", "request_", "field"), BAD_CALLS, ids=[f"{n}-{c[0]}-{c[2]}" for n, c in enumerate(BAD_CALLS)]
)
async def test_invalid_request_is_refused(wire: Wire, method: str, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await getattr(wire.groups, method)(request_)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetGroup", rpc.GetGroupRequest(group_id=GROUP)),
        ("UpdateGroup", updating("description")),
        ("ListGroupMessages", rpc.ListGroupMessagesRequest(group_id=GROUP)),
        ("ResetGroupMessages", rpc.ResetGroupMessagesRequest(group_id=GROUP)),
        ("ListGroups", rpc.ListGroupsRequest(after_id=GROUP)),
    ],
)
async def test_missing_group_is_not_found(wire: Wire, method: str, request_: Any) -> None:
    with pytest.raises(NotFound) as raised:
        await getattr(wire.groups, method)(request_)
    assert raised.value.metadata["resource_id"] == GROUP


async def test_deletion_of_a_missing_group_succeeds(wire: Wire) -> None:
    await wire.groups.DeleteGroup(rpc.DeleteGroupRequest(group_id=GROUP))


async def test_foreign_page_token_is_refused(wire: Wire) -> None:
    with pytest.raises(PageTokenInvalid):
        await wire.groups.ListGroups(rpc.ListGroupsRequest(page_token="x"))
