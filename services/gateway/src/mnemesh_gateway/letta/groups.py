"""Groups: create, retrieve, list, count, update, delete, their blocks, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import Aborted
from starlette.responses import Response

from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, PageQuery, chronological, listed
from mnemesh_gateway.letta.messages import ListMessages, messages_from_proto, shown_by
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.sending import SendMessages, check_streaming
from mnemesh_gateway.letta.turns import LettaResponse, Recipient, replied
from mnemesh_gateway.letta.values import MANAGER_TYPES, present, set_present

ManagerType = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]


class Group(msgspec.Struct, kw_only=True):
    """A group, with the settings of its manager."""

    id: str
    manager_type: str
    agent_ids: list[str]
    description: str
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    shared_block_ids: list[str] = []
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    sleeptime_agent_frequency: int | None = None
    turns_counter: int | None = None
    last_processed_message_id: str | None = None
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None
    hidden: bool | None = None


class GroupManager(msgspec.Struct, kw_only=True):
    """The kind of a manager, and its settings. Those of other kinds are ignored."""

    manager_type: ManagerType
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    sleeptime_agent_frequency: int | None = None
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None


class CreateGroup(msgspec.Struct, kw_only=True):
    """A group to create."""

    agent_ids: list[str]
    description: str
    manager_config: GroupManager | None = None
    project_id: str | None = None
    shared_block_ids: list[str] = []
    hidden: bool | None = None


class UpdateGroup(msgspec.Struct, kw_only=True):
    """Changes of a group. A field that is null or absent stays as it is."""

    agent_ids: list[str] | None = None
    description: str | None = None
    manager_config: GroupManager | None = None
    project_id: str | None = None
    shared_block_ids: list[str] | None = None


class ListGroups(msgspec.Struct, kw_only=True):
    """The query of a list of groups."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    manager_type: ManagerType | None = None
    project_id: str | None = None
    show_hidden_groups: bool = False


class GroupResult(msgspec.Struct, kw_only=True):
    """The result of a deletion."""

    message: str


def settings_of(manager: GroupManager) -> dict[str, Any]:
    """Returns the settings of a manager that a body has, by name."""
    names = (name for name in manager.__struct_fields__ if name != "manager_type")
    return {name: value for name in names if (value := getattr(manager, name)) is not None}


BEFORE_FIRST_TURN: Final = -1
"""The count of turns with which Letta's sleeptime groups begin: their members run after the first turn."""


def group_from_proto(group: pb.Group) -> Group:
    """Returns a group with the settings of its manager."""
    kind = _kind(group)
    settings: Any = getattr(group.manager_config, kind)
    names = {field.name for field in settings.DESCRIPTOR.fields}

    def of(name: str) -> Any:
        return present(settings, name) if name in names else None

    return Group(
        id=group.id,
        manager_type=kind,
        agent_ids=list(group.agent_ids),
        description=group.description,
        project_id=present(group.provenance, "project_id"),
        template_id=present(group.provenance, "template_id"),
        base_template_id=present(group.provenance, "base_template_id"),
        deployment_id=present(group.provenance, "deployment_id"),
        shared_block_ids=list(group.shared_block_ids),
        manager_agent_id=settings.manager_agent_id if "manager_agent_id" in names else None,
        termination_token=of("termination_token"),
        max_turns=of("max_turns"),
        sleeptime_agent_frequency=of("sleeptime_agent_frequency"),
        turns_counter=_turns_counter(group),
        last_processed_message_id=present(group, "last_processed_message_id"),
        max_message_buffer_length=of("max_message_buffer_length"),
        min_message_buffer_length=of("min_message_buffer_length"),
        hidden=group.hidden,
    )


def _turns_counter(group: pb.Group) -> int | None:
    """Returns the count as Letta has it: that of the turns since the members ran, if they do not run after each."""
    frequency = group.manager_config.sleeptime.sleeptime_agent_frequency
    if not frequency:
        return None
    return group.turns_counter % frequency if group.turns_counter >= 0 else group.turns_counter


def group_to_proto(body: CreateGroup) -> pb.Group:
    """Returns the message of a group to create. Raises ValidationFailed if the manager's agent is missing."""
    group = pb.Group(
        description=body.description,
        agent_ids=body.agent_ids,
        shared_block_ids=body.shared_block_ids,
        hidden=bool(body.hidden),
    )
    set_present(group.provenance, project_id=body.project_id)
    if body.manager_config is not None:
        group.manager_config.CopyFrom(_manager(body.manager_config))
    if group.manager_config.sleeptime.sleeptime_agent_frequency:
        group.turns_counter = BEFORE_FIRST_TURN
    return group


def group_update_to_proto(body: UpdateGroup, current: pb.Group, request_id: str) -> rpc.UpdateGroupRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none.

    Args:
        body: of the client.
        current: the group as it is. Its manager keeps the settings that the body leaves out, unless its kind changes.
        request_id: of the update.
    """
    group = pb.Group(id=current.id)
    request = rpc.UpdateGroupRequest(request_id=request_id)
    paths = request.update_mask.paths
    for name in ("agent_ids", "shared_block_ids"):
        ids: list[str] | None = getattr(body, name)
        if ids is not None:
            getattr(group, name).extend(ids)
            paths.append(name)
    if body.description is not None:
        group.description = body.description
        paths.append("description")
    if body.project_id is not None:
        group.provenance.project_id = body.project_id
        paths.append("provenance.project_id")
    given = body.manager_config
    if given is not None and given.manager_type == _kind(current):
        kind = given.manager_type
        settings = _settings(kind, given)
        if settings:
            set_present(getattr(group.manager_config, kind), **settings)
            paths.extend(f"manager_config.{kind}.{name}" for name in settings)
    elif given is not None:
        group.manager_config.CopyFrom(_manager(given))
        paths.append("manager_config")
    if group.manager_config.HasField("sleeptime"):
        # Letta starts to count when a frequency is first set. A later frequency or manager does not reset the count.
        count = _turns_counter(current)
        group.turns_counter = BEFORE_FIRST_TURN if count is None else count
        paths.append("turns_counter")
    request.group.CopyFrom(group)
    return request


def _kind(group: pb.Group) -> str:
    return group.manager_config.WhichOneof("config") or "round_robin"


def _manager(given: GroupManager) -> pb.ManagerConfig:
    config = pb.ManagerConfig()
    manager: Any = getattr(config, given.manager_type)
    manager.SetInParent()
    if "manager_agent_id" in manager.DESCRIPTOR.fields_by_name and not given.manager_agent_id:
        raise invalid_field("Field required", "body", "manager_config", "manager_agent_id")
    set_present(manager, **_settings(given.manager_type, given))
    return config


def _settings(kind: str, given: GroupManager) -> dict[str, Any]:
    """Returns the settings that managers of a kind have."""
    known = getattr(pb.ManagerConfig(), kind).DESCRIPTOR.fields_by_name
    return {name: value for name, value in settings_of(given).items() if name in known}


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
