"""Groups: create, retrieve, list, count, update, delete, their blocks, and their messages."""

from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import msgspec
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import Aborted
from mnemesh_letta.convert.values import fill, named, set_present, shown
from starlette.responses import Response

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import PageQuery, list_chronologically, list_page
from mnemesh_gateway.letta.messages import ListMessages, messages_from_proto, shown_by
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.sending import SendMessages, check_streaming
from mnemesh_gateway.letta.turns import LettaResponse, Recipient, reply_to

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


class UpdateGroup(msgspec.Struct, kw_only=True):
    """Changes of a group. A field that is null or absent stays as it is."""

    agent_ids: list[str] | None = None
    description: str | None = None
    manager_config: GroupManager | None = None
    project_id: str | None = None
    shared_block_ids: list[str] | None = None


class CreateGroup(UpdateGroup, kw_only=True):
    """A group to create."""

    agent_ids: list[str]
    description: str
    hidden: bool | None = None


class ListGroups(PageQuery, kw_only=True):
    """The query of a list of groups."""

    manager_type: ManagerType | None = None
    project_id: str | None = None
    show_hidden_groups: bool = False


class GroupResult(msgspec.Struct, kw_only=True):
    """The result of a deletion."""

    message: str


MANAGER_TYPES: Final = named(pb, "MANAGER_TYPE", *get_args(ManagerType))
BEFORE_FIRST_TURN: Final = -1
"""The count of turns with which Letta's sleeptime groups begin: their members run after the first turn."""


def group_from_proto(group: pb.Group) -> Group:
    """Returns a group with the settings of its manager."""
    kind = _kind(group)
    settings: Any = getattr(group.manager_config, kind)
    of_manager = {field.name: getattr(settings, field.name) for field, _ in settings.ListFields()}
    return shown(Group, group, manager_type=kind, turns_counter=_turns_counter(group), **of_manager)


def _turns_counter(group: pb.Group) -> int | None:
    """Returns the count as Letta has it: that of the turns since the members ran, if they do not run after each."""
    frequency = group.manager_config.sleeptime.sleeptime_agent_frequency
    if not frequency:
        return None
    return group.turns_counter % frequency if group.turns_counter >= 0 else group.turns_counter


def group_to_proto(body: CreateGroup) -> pb.Group:
    """Returns the message of a group to create. Raises ValidationFailed if the manager's agent is missing."""
    group = pb.Group()
    fill(group, body)
    if body.manager_config is not None:
        group.manager_config.CopyFrom(_manager(body.manager_config))
    if group.manager_config.sleeptime.sleeptime_agent_frequency:
        group.turns_counter = BEFORE_FIRST_TURN
    return group


def group_update_to_proto(body: UpdateGroup, current: pb.Group) -> rpc.UpdateGroupRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none.

    Args:
        body: of the client.
        current: the group as it is. Its manager keeps the settings that the body leaves out, unless its kind changes.
    """
    request = rpc.UpdateGroupRequest(group=pb.Group(id=current.id))
    group, given = request.group, body.manager_config
    paths = fill(group, body)
    if given is not None and given.manager_type == _kind(current):
        kind = given.manager_type
        paths += [f"manager_config.{kind}.{name}" for name in fill(getattr(group.manager_config, kind), given)]
    elif given is not None:
        group.manager_config.CopyFrom(_manager(given))
        paths.append("manager_config")
    if group.manager_config.HasField("sleeptime"):
        # Letta starts to count when a frequency is first set. A later frequency or manager does not reset the count.
        count = _turns_counter(current)
        group.turns_counter = BEFORE_FIRST_TURN if count is None else count
        paths.append("turns_counter")
    request.update_mask.paths.extend(paths)
    return request


def _kind(group: pb.Group) -> str:
    return group.manager_config.WhichOneof("config") or "round_robin"


def _manager(given: GroupManager) -> pb.ManagerConfig:
    config = pb.ManagerConfig()
    manager: Any = getattr(config, given.manager_type)
    manager.SetInParent()
    if "manager_agent_id" in manager.DESCRIPTOR.fields_by_name and not given.manager_agent_id:
        raise invalid_field("Field required", "body", "manager_config", "manager_agent_id")
    fill(manager, given)
    return config


operations = Operations()
_WRITE_SECONDS: Final = 60.0
_ATTEMPTS: Final = 20


@operations.get("/groups/")
async def list_groups(call: Call[ListGroups, None]) -> list[Group]:
    """Lists groups, oldest first."""
    query = call.query
    request = rpc.ListGroupsRequest(filter=_filter(query))
    rows = await list_page(call.mesh.groups.ListGroups, request, "groups", query, default="asc")
    return [group_from_proto(row) for row in rows]


@operations.get("/groups/count")
async def count_groups(call: Call[NoQuery, None]) -> int:
    """Counts groups."""
    return int((await read(call.mesh.groups.CountGroups, rpc.CountGroupsRequest(filter=rpc.GroupFilter()))).count)


@operations.post("/groups/")
async def create_group(call: Call[NoQuery, CreateGroup]) -> Group:
    """Creates a group; round robin unless the body names another manager."""
    request = rpc.CreateGroupRequest(group=group_to_proto(call.body))
    return group_from_proto((await call.write(call.mesh.groups.CreateGroup, request)).group)


@operations.get("/groups/{group_id}")
async def retrieve_group(call: Call[NoQuery, None]) -> Group:
    """Returns a group."""
    return group_from_proto(await _group(call))


@operations.patch("/groups/{group_id}")
async def modify_group(call: Call[NoQuery, UpdateGroup]) -> Group:
    """Updates a group. Lists of ids replace those of the group."""
    current = await _group(call)
    request = group_update_to_proto(call.body, current)
    if not request.update_mask.paths:
        return group_from_proto(current)
    return group_from_proto((await call.write(call.mesh.groups.UpdateGroup, request)).group)


@operations.delete("/groups/{group_id}")
async def delete_group(call: Call[NoQuery, None]) -> GroupResult:
    """Deletes a group. Its agents and their messages stay."""
    group = await _group(call)
    await call.write(call.mesh.groups.DeleteGroup, rpc.DeleteGroupRequest(group_id=group.id))
    return GroupResult(message=f"Group id={group.id} successfully deleted")


@operations.post("/groups/{group_id}/messages")
async def send_group_message(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages to a group and returns the turns of its agents; with streaming=true as server-sent events."""
    check_streaming(call.body, streams=False)
    recipient = Recipient(group_id=call.path["group_id"])
    return await reply_to(call, recipient, stream=bool(call.body.streaming))


@operations.post("/groups/{group_id}/messages/stream")
async def send_group_message_streaming(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages to a group and streams the turns of its agents."""
    recipient = Recipient(group_id=call.path["group_id"])
    return await reply_to(call, recipient, stream=True)


@operations.get("/groups/{group_id}/messages")
async def list_group_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists the messages of a group in chronological order: the newest, or the oldest for `order=asc`."""
    query = call.query
    request = rpc.ListGroupMessagesRequest(group_id=call.path["group_id"])
    rows = await list_chronologically(call.mesh.groups.ListGroupMessages, request, "messages", query, limit=10)
    return messages_from_proto(rows, shown_by(query))


@operations.patch("/groups/{group_id}/reset-messages")
async def reset_group_messages(call: Call[NoQuery, None]) -> None:
    """Removes all messages but the system messages from the windows of the group's agents. They stay in recall."""
    request = rpc.ResetGroupMessagesRequest(group_id=call.path["group_id"], keep_turns_counter=True)
    await call.write(call.mesh.groups.ResetGroupMessages, request)


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


@operations.get("/agents/{agent_id}/groups")
async def list_groups_for_agent(call: Call[ListGroups, None]) -> list[Group]:
    """Lists the groups of which an agent is a member or the manager, newest first."""
    query = call.query
    request = rpc.ListGroupsRequest(filter=_filter(query))
    request.filter.agent_id = call.path["agent_id"]
    rows = await list_page(call.mesh.groups.ListGroups, request, "groups", query, default="desc", limit=100)
    return [group_from_proto(row) for row in rows]


async def _group(call: Call[Any, Any]) -> pb.Group:
    return (await read(call.mesh.groups.GetGroup, rpc.GetGroupRequest(group_id=call.path["group_id"]))).group


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
