"""Groups of agents: create, get, find, list, count, update and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf import duration_pb2
from mnemesh.agents.v1 import groups_pb2, groups_service_pb2, groups_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_client.group import Group
from mnemesh_client.inputs import is_id, json_text, optional_timestamp, present_fields
from mnemesh_client.messages import RoleName, role_values
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

ManagerTypeName = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]

_CHANGE_SECONDS = 60.0
"""The deadline of calls that change several services, or that wait for runs."""
_NAMED = 5
"""The number of groups of one description that an error lists."""


class GroupsClient:
    """Calls of GroupService, as `client.groups`."""

    def __init__(self, mnemesh: Mnemesh, channel: Channel) -> None:
        self._mnemesh = mnemesh
        self.stub = groups_service_pb2_grpc.GroupServiceStub(channel)

    async def create(
        self,
        agent_ids: Sequence[str],
        *,
        manager_type: ManagerTypeName | str = "round_robin",
        description: str = "",
        shared_block_ids: Sequence[str] = (),
        hidden: bool = False,
        metadata: Mapping[str, Any] | str | None = None,
        turns_counter: int | None = None,
        request_id: str = "",
        **manager: Any,
    ) -> Group:
        """Creates a group.

        Args:
            agent_ids: the members in order, without the manager.
            manager_type: "round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime" or "swarm".
            description: a description for people. The group can be found by it.
            shared_block_ids: blocks that are attached to all agents of the group.
            hidden: whether lists for people should leave it out.
            metadata: any JSON object; it is stored unchanged.
            turns_counter: the count of turns with which a sleeptime group begins; None is 0. With -1, its members run
                after the first turn, and then after every n-th.
            request_id: the idempotency key, to get the same group again; empty creates a new one.
            manager: the fields of the manager config of that type, such as `manager_agent_id` and `max_turns`. A
                duration (`interval`, `inactivity`) is a timedelta.

        Raises:
            NotFound: an agent or a block does not exist.
            InvalidArgument: a field is invalid or does not belong to the type of manager (`error.field`).
            AlreadyExists: BLOCK_LABEL_TAKEN: an agent has a block with the label of a shared one.
        """
        group = groups_pb2.Group(
            description=description,
            agent_ids=agent_ids,
            manager_config=manager_config(manager_type, **manager),
            shared_block_ids=shared_block_ids,
            hidden=hidden,
            metadata=json_text(metadata),
            turns_counter=turns_counter,
        )
        request = groups_service_pb2.CreateGroupRequest(request_id=request_id, group=group)
        return Group(self._mnemesh, (await self.stub.CreateGroup(request, timeout=_CHANGE_SECONDS)).group)

    async def get(self, group_id: str) -> Group:
        """Returns the group with an id. Raises NotFound."""
        response = await self.stub.GetGroup(groups_service_pb2.GetGroupRequest(group_id=group_id))
        return Group(self._mnemesh, response.group)

    async def find(self, key: str) -> Group:
        """Returns the group with an id or description.

        Raises:
            NotFound: there is no such group.
            InvalidArgument: several groups have that description. The message lists their ids.
        """
        if is_id(key, "group"):
            return await self.get(key)
        found: list[Group] = []
        async for group in self.list(order="asc"):
            if group.description == key:
                found.append(group)
            if len(found) > _NAMED:
                break
        if not found:
            raise NotFound(f"There is no group with the description {key!r}.", resource_id=key)
        if len(found) > 1:
            ids = [group.id for group in found[:_NAMED]] + ["…"] * (len(found) > _NAMED)
            raise InvalidArgument(
                f"Several groups have the description {key!r}: {', '.join(ids)}. Use the id of one.", field="group"
            )
        return found[0]

    async def list(
        self,
        *,
        agent_id: str | None = None,
        manager_types: Sequence[ManagerTypeName] = (),
        hidden: bool | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Group]:
        """Yields the groups that match all arguments, oldest first unless `order` is "desc".

        Args:
            agent_id: only groups of which this agent is a member or the manager.
            manager_types: only groups with one of these types of manager.
            hidden: only groups that are hidden, or that are not.
            order: "asc" or "desc", by the time of creation.
            limit: the maximum number of groups; None yields all.
        """
        request = groups_service_pb2.ListGroupsRequest(
            order=sort_order(order), filter=_criteria(agent_id, manager_types, hidden)
        )
        async for proto in paginate(self.stub.ListGroups, request, "groups", limit):
            yield Group(self._mnemesh, proto)

    async def managed_by(self, agent_id: str) -> Group | None:
        """Returns the sleeptime group that an agent manages, or None if there is none."""
        async for group in self.list(agent_id=agent_id, manager_types=("sleeptime", "voice_sleeptime")):
            if group.manager_agent_id == agent_id:
                return group
        return None

    async def count(
        self, *, agent_id: str | None = None, manager_types: Sequence[ManagerTypeName] = (), hidden: bool | None = None
    ) -> int:
        """Returns the number of groups that match all arguments; see `list`."""
        request = groups_service_pb2.CountGroupsRequest(filter=_criteria(agent_id, manager_types, hidden))
        return (await self.stub.CountGroups(request)).count

    async def update(
        self, group_id: str, *, if_revision: int | None = None, request_id: str = "", **fields: Any
    ) -> Group:
        """Updates a group, and returns it. None clears a field.

        Args:
            group_id: the group.
            if_revision: the revision that the group must have (`proto.revision`); None changes any.
            request_id: the idempotency key; empty creates a new one.
            fields: fields of Group (`description`, `agent_ids`, `shared_block_ids`, `hidden`, `metadata`,
                `turns_counter`, `manager_config`), and fields of its current manager config (such as `max_turns`).

        Raises:
            NotFound: the group, an agent or a block does not exist.
            InvalidArgument: a field is invalid or does not belong to the type of manager (`error.field`).
            Aborted: GROUP_REVISION_MISMATCH: the group has another revision.
        """
        group, paths = groups_pb2.Group(id=group_id), []
        manager = {name: fields.pop(name) for name in list(fields) if name in _all_manager_fields()}
        if manager and "manager_config" in fields:
            raise InvalidArgument("Set either manager_config or its fields.", field="manager_config")
        if "metadata" in fields:
            fields["metadata"] = json_text(fields["metadata"])
        if manager:
            kind = (await self.get(group_id)).manager_type
            group.manager_config.CopyFrom(manager_config(kind, **manager))
            paths += [f"manager_config.{kind}.{name}" for name in manager]
        group.MergeFrom(groups_pb2.Group(**present_fields(**fields)))
        request = groups_service_pb2.UpdateGroupRequest(request_id=request_id, group=group, if_revision=if_revision)
        request.update_mask.paths.extend([*fields, *paths])
        return Group(self._mnemesh, (await self.stub.UpdateGroup(request, timeout=_CHANGE_SECONDS)).group)

    async def delete(self, group_id: str, *, request_id: str = "") -> None:
        """Deletes a group and cancels its runs. Its agents and their messages are kept."""
        request = groups_service_pb2.DeleteGroupRequest(request_id=request_id, group_id=group_id)
        await self.stub.DeleteGroup(request, timeout=_CHANGE_SECONDS)

    def messages(
        self,
        group_id: str,
        *,
        agent_id: str | None = None,
        roles: Sequence[RoleName] = (),
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[message_pb2.Message]:
        """Yields the messages that the agents of a group wrote or received in its runs.

        Args:
            group_id: the group.
            agent_id: only messages of this agent.
            roles: only messages with these roles.
            start_time: only messages from this time on.
            end_time: only messages before this time.
            order: "asc" (the default) or "desc".
            limit: the maximum number of messages; None yields all.
        """
        request = groups_service_pb2.ListGroupMessagesRequest(
            group_id=group_id,
            agent_id=agent_id,
            roles=role_values(roles),
            start_time=optional_timestamp(start_time),
            end_time=optional_timestamp(end_time),
            order=sort_order(order),
        )
        return paginate(self.stub.ListGroupMessages, request, "messages", limit)

    async def reset(self, group_id: str, *, request_id: str = "") -> Group:
        """Removes all messages except the system messages from the default windows of its agents. Returns the group.

        The messages stay in recall. The call waits for running runs.

        Raises:
            NotFound: the group does not exist.
            Aborted: CONVERSATION_BUSY, with the id of the active run.
        """
        request = groups_service_pb2.ResetGroupMessagesRequest(request_id=request_id, group_id=group_id)
        return Group(self._mnemesh, (await self.stub.ResetGroupMessages(request, timeout=_CHANGE_SECONDS)).group)


def manager_config(manager_type: str, **fields: Any) -> groups_pb2.ManagerConfig:
    """Returns the manager config of a type with its fields. Fields that are None stay absent.

    Raises:
        InvalidArgument: there is no such type, or it has no such field.
    """
    config = groups_pb2.ManagerConfig()
    if manager_type not in groups_pb2.ManagerConfig.DESCRIPTOR.fields_by_name:
        known = ", ".join(field.name for field in groups_pb2.ManagerConfig.DESCRIPTOR.fields)
        raise InvalidArgument(f"There is no manager type {manager_type!r}. Use one of {known}.", field="manager_type")
    manager = getattr(config, manager_type)
    manager.SetInParent()
    for name, value in fields.items():
        if name not in manager_field_names(manager_type):
            raise InvalidArgument(f"A {manager_type} group has no field {name!r}.", field=name)
        if isinstance(value, timedelta):
            duration = duration_pb2.Duration()
            duration.FromTimedelta(value)
            getattr(manager, name).CopyFrom(duration)
        elif value is not None:
            setattr(manager, name, value)
    return config


def manager_field_names(manager_type: str) -> frozenset[str]:
    """Returns the names of the fields of a manager config."""
    config = groups_pb2.ManagerConfig.DESCRIPTOR.fields_by_name[manager_type].message_type
    return frozenset(field.name for field in config.fields) if config is not None else frozenset()


def _all_manager_fields() -> frozenset[str]:
    return frozenset().union(*map(manager_field_names, groups_pb2.ManagerConfig.DESCRIPTOR.fields_by_name))


def _criteria(
    agent_id: str | None, manager_types: Sequence[ManagerTypeName], hidden: bool | None
) -> groups_service_pb2.GroupFilter:
    return groups_service_pb2.GroupFilter(
        agent_id=agent_id,
        manager_types=[groups_pb2.ManagerType.Value(f"MANAGER_TYPE_{name.upper()}") for name in manager_types],
        hidden=hidden,
    )
