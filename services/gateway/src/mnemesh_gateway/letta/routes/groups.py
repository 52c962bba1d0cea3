"""Groups: create, retrieve, list, count, update, delete, their blocks, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import Aborted
from starlette.responses import Response

from mnemesh_gateway.letta.approvals import Recipient
from mnemesh_gateway.letta.convert.groups import group_from_proto, group_to_proto, group_update_to_proto
from mnemesh_gateway.letta.convert.messages import messages_from_proto
from mnemesh_gateway.letta.convert.values import MANAGER_TYPES, set_present
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, chronological, listed
from mnemesh_gateway.letta.routes.agent_messages import check_streaming, shown_by
from mnemesh_gateway.letta.schemas.groups import CreateGroup, Group, GroupResult, ListGroups, UpdateGroup
from mnemesh_gateway.letta.schemas.messages import LettaResponse, ListMessages, SendMessages
from mnemesh_gateway.letta.turns import replied

operations = Operations()
_WRITE_SECONDS: Final = 60.0
_ATTEMPTS: Final = 20


@operations.get("/groups/", query=ListGroups, result=list[Group])
async def list_groups(call: Call[ListGroups, None]) -> list[Group]:
    """Lists groups, oldest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListGroupsRequest(filter=_filter(query))
    rows = await listed(call.mesh.groups.ListGroups, request, "groups", page, default="asc")
    return [group_from_proto(row) for row in rows]


@operations.get("/groups/count", result=int)
async def count_groups(call: Call[NoQuery, None]) -> int:
    """Counts groups."""
    request = rpc.CountGroupsRequest(filter=rpc.GroupFilter())
    return int((await call.mesh.groups.CountGroups(request, timeout=READ_SECONDS)).count)


@operations.post("/groups/", body=CreateGroup, result=Group)
async def create_group(call: Call[NoQuery, CreateGroup]) -> Group:
    """Creates a group; round robin unless the body names another manager."""
    request = rpc.CreateGroupRequest(request_id=call.request_id, group=group_to_proto(call.body))
    return group_from_proto((await call.mesh.groups.CreateGroup(request, timeout=_WRITE_SECONDS)).group)


@operations.get("/groups/{group_id}", result=Group)
async def retrieve_group(call: Call[NoQuery, None]) -> Group:
    """Returns a group."""
    return group_from_proto(await _group(call))


@operations.patch("/groups/{group_id}", body=UpdateGroup, result=Group)
async def modify_group(call: Call[NoQuery, UpdateGroup]) -> Group:
    """Updates a group. Lists of ids replace those of the group."""
    current = await _group(call)
    request = group_update_to_proto(call.body, current, call.request_id)
    if not request.update_mask.paths:
        return group_from_proto(current)
    return group_from_proto((await call.mesh.groups.UpdateGroup(request, timeout=_WRITE_SECONDS)).group)


@operations.delete("/groups/{group_id}", result=GroupResult)
async def delete_group(call: Call[NoQuery, None]) -> GroupResult:
    """Deletes a group. Its agents and their messages stay."""
    group = await _group(call)
    request = rpc.DeleteGroupRequest(request_id=call.request_id, group_id=group.id)
    await call.mesh.groups.DeleteGroup(request, timeout=_WRITE_SECONDS)
    return GroupResult(message=f"Group id={group.id} successfully deleted")


@operations.post("/groups/{group_id}/messages", body=SendMessages, result=LettaResponse)
async def send_group_message(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages to a group and returns the turns of its agents; with streaming=true as server-sent events."""
    check_streaming(call.body, streams=False)
    recipient = Recipient(group_id=call.path["group_id"])
    return await replied(call, recipient, stream=bool(call.body.streaming))


@operations.post("/groups/{group_id}/messages/stream", body=SendMessages, result=LettaResponse)
async def send_group_message_streaming(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages to a group and streams the turns of its agents."""
    recipient = Recipient(group_id=call.path["group_id"])
    return await replied(call, recipient, stream=True)


@operations.get("/groups/{group_id}/messages", query=ListMessages, result=list[dict[str, Any]])
async def list_group_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists the messages of a group in chronological order: the newest, or the oldest for `order=asc`."""
    query = call.query
    request = rpc.ListGroupMessagesRequest(group_id=call.path["group_id"])
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    rows = await chronological(call.mesh.groups.ListGroupMessages, request, "messages", page, limit=10)
    return messages_from_proto(rows, shown_by(query))


@operations.patch("/groups/{group_id}/reset-messages")
async def reset_group_messages(call: Call[NoQuery, None]) -> None:
    """Removes all messages but the system messages from the windows of the group's agents. They stay in recall."""
    request = rpc.ResetGroupMessagesRequest(
        request_id=call.request_id, group_id=call.path["group_id"], keep_turns_counter=True
    )
    await call.mesh.groups.ResetGroupMessages(request, timeout=_WRITE_SECONDS)


@operations.patch("/groups/{group_id}/blocks/attach/{block_id}")
async def attach_block_to_group(call: Call[NoQuery, None]) -> None:
    """Attaches a block to all agents of a group."""
    block_id = call.path["block_id"]
    await _share(call, lambda shared: shared if block_id in shared else [*shared, block_id])


@operations.patch("/groups/{group_id}/blocks/detach/{block_id}")
async def detach_block_from_group(call: Call[NoQuery, None]) -> None:
    """Detaches a block from the agents of a group that did not hold it before."""
    block_id = call.path["block_id"]
    await _share(call, lambda shared: [held for held in shared if held != block_id])


@operations.get("/agents/{agent_id}/groups", query=ListGroups, result=list[Group])
async def list_groups_for_agent(call: Call[ListGroups, None]) -> list[Group]:
    """Lists the groups of which an agent is a member or the manager, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListGroupsRequest(filter=_filter(query))
    request.filter.agent_id = call.path["agent_id"]
    rows = await listed(call.mesh.groups.ListGroups, request, "groups", page, default="desc", limit=100)
    return [group_from_proto(row) for row in rows]


async def _group(call: Call[Any, Any]) -> pb.Group:
    request = rpc.GetGroupRequest(group_id=call.path["group_id"])
    return (await call.mesh.groups.GetGroup(request, timeout=READ_SECONDS)).group


async def _share(call: Call[NoQuery, None], change: Callable[[list[str]], list[str]]) -> None:
    """Changes the ids of the blocks of a group as it is now. Other requests may change it at the same time."""
    for attempt in range(1, _ATTEMPTS + 1):
        group = await _group(call)
        shared = list(group.shared_block_ids)
        changed = change(shared)
        if changed == shared:
            return
        request = rpc.UpdateGroupRequest(
            group=pb.Group(id=group.id, shared_block_ids=changed), if_revision=group.revision
        )
        request.update_mask.paths.append("shared_block_ids")
        try:
            await call.mesh.groups.UpdateGroup(request, timeout=_WRITE_SECONDS)
            return
        except Aborted:
            if attempt == _ATTEMPTS:
                raise


def _filter(query: ListGroups) -> rpc.GroupFilter:
    found = rpc.GroupFilter(manager_types=[MANAGER_TYPES[query.manager_type]] if query.manager_type else ())
    set_present(found, project_id=query.project_id, hidden=None if query.show_hidden_groups else False)
    return found
