"""Groups of agents: their handles, the calls about them, and the background runs of sleeptime groups."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from google.protobuf import duration_pb2
from mnemesh.agents.v1 import (
    agents_service_pb2,
    agents_service_pb2_grpc,
    groups_pb2,
    groups_service_pb2,
    groups_service_pb2_grpc,
    runs_pb2,
)
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_client.errors import ApprovalRequired, RunFailed
from mnemesh_client.inputs import Input, is_id, json_text, optional_timestamp, present_fields, text_of
from mnemesh_client.messages import RoleName, role_values
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.results import GroupEvent, GroupReply
from mnemesh_client.runs import RunsClient
from mnemesh_client.transport import Channel, closing

ManagerTypeName = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]

_CHANGE_SECONDS = 60.0
"""The deadline of calls that change several services, or that wait for runs."""
_NAMED = 5
"""The number of groups of one description that an error lists."""


class Group:
    """The handle of a group. `proto` is the Group message as of the last call that returned it."""

    def __init__(self, groups: "GroupsClient", proto: groups_pb2.Group) -> None:
        self._groups = groups
        self.proto = proto

    def __repr__(self) -> str:
        return f"Group(id={self.id!r}, type={self.manager_type!r}, description={self.description!r})"

    @property
    def id(self) -> str:
        """The id: "group-" and a UUID."""
        return self.proto.id

    @property
    def description(self) -> str:
        """The description. It is not unique."""
        return self.proto.description

    @property
    def agent_ids(self) -> list[str]:
        """The ids of the members in order, without the manager."""
        return list(self.proto.agent_ids)

    @property
    def manager_type(self) -> str:
        """The type of the manager, such as "round_robin"."""
        return self.proto.manager_config.WhichOneof("config") or "round_robin"

    @property
    def manager_agent_id(self) -> str | None:
        """The id of the manager, or None if the group has none."""
        config = getattr(self.proto.manager_config, self.manager_type)
        return getattr(config, "manager_agent_id", "") or None

    @property
    def is_sleeptime(self) -> bool:
        """True if its members work in the background of the manager."""
        return self.manager_type in ("sleeptime", "voice_sleeptime")

    def send(
        self,
        content: Input,
        *,
        stream_tokens: bool = False,
        max_steps: int | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[GroupEvent]:
        """Sends input to the group and yields the events of all turns in order, up to the stop and usage of the run.

        The stream survives a broken connection as that of `Agent.send` does. `event.member_turn_started` and
        `event.member_turn_ended` surround the events of a turn. A turn that failed has an error in the latter, and the
        run continues with the next speaker. While a turn waits for an approval, the stream waits; `answer` continues
        it. Leaving the loop early does not cancel the run.

        Args:
            content: the user's text, or input messages.
            stream_tokens: yield `event.delta` in addition to whole messages.
            max_steps: the maximum number of steps of each turn.
            config: all settings of the run; `stream_tokens` and `max_steps` override it.
            request_id: the idempotency key, to get the same run again; None creates a new one.

        Raises:
            NotFound: the group does not exist.
            FailedPrecondition: GROUP_UNUSABLE: it has no members, or its manager was deleted.
            Aborted: CONVERSATION_BUSY, with the id of the active run, if `config.on_busy` is REJECT.
            Unimplemented: the group is a swarm.
            Unavailable: the server did not answer within the client's patience.
        """
        run_config = runs_pb2.RunConfig()
        if config is not None:
            run_config.CopyFrom(config)
        if stream_tokens:
            run_config.stream_tokens = True
        if max_steps is not None:
            run_config.max_steps = max_steps
        return self._with_speakers(
            self._groups.runs.send("", content, group_id=self.id, config=run_config, request_id=request_id)
        )

    async def ask(self, content: Input, **options: Any) -> list[GroupReply]:
        """Sends input and returns what the agents said to the user, in order. Takes the options of `send`.

        Raises:
            RunFailed: the run ended in an error; see its `reason`. A failed turn alone raises nothing.
            ApprovalRequired: a turn waits for an approval. The run waits on the server.
        """
        replies: list[GroupReply] = []
        async for item in self.send(content, **options):
            event = item.event
            if event.HasField("error"):
                raise RunFailed(event.run_id, event.error.error)
            if event.message.HasField("approval_request"):
                raise ApprovalRequired(event.run_id, item.agent_id, item.agent_name)
            if event.message.HasField("assistant") and not item.is_selection:
                replies.append(GroupReply(item.agent_id, item.agent_name, text_of(event.message.assistant.content)))
        return replies

    async def start(
        self, content: Input, *, config: runs_pb2.RunConfig | None = None, request_id: str | None = None
    ) -> runs_pb2.Run:
        """Starts a run in the background and returns it. Follow it with `follow`."""
        return await self._groups.runs.start("", content, group_id=self.id, config=config, request_id=request_id)

    def follow(self, run_id: str, *, starting_after: int = 0) -> AsyncIterator[GroupEvent]:
        """Yields the events of a run of this group after a sequence number, and follows it to its end."""
        return self._with_speakers(self._groups.runs.stream(run_id, starting_after=starting_after))

    async def answer(
        self, agent_id: str, decisions: Sequence[message_pb2.ApprovalDecision], **options: Any
    ) -> runs_pb2.Run:
        """Answers the approval request of an agent that a run of this group waits for. Returns the run that answers.

        The run of the group continues: its stream yields the rest of the turn. `Run.waiting_for` lists the requests.

        Args:
            agent_id: the agent that waits.
            decisions: one decision for each pending call; see `Agent.answer`.
            options: `approval_request_id`, `config` and `request_id`, as of `Agent.answer`.

        Raises:
            NotFound: the agent does not exist.
            FailedPrecondition: NO_PENDING_APPROVAL.
            InvalidArgument: APPROVAL_MISMATCH, with the calls expected and received.
        """
        async with closing(self._groups.runs.answer(agent_id, decisions, **options)) as events:
            event = await anext(events)
        return await self._groups.runs.get(event.run_id)

    async def cancel(self) -> dict[str, Any]:
        """Cancels the runs of the group, with the turns of its agents in them. Returns the outcome by run id."""
        return dict(await self._groups.runs.cancel(group_id=self.id))

    def runs(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs of the group and the turns of its agents in them, newest first unless `order` is "asc"."""
        return self._groups.runs.list(group_id=self.id, order=order, limit=limit)

    def messages(
        self,
        *,
        agent_id: str | None = None,
        roles: Sequence[RoleName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[message_pb2.Message]:
        """Yields the messages that its agents wrote or received in its runs. See `GroupsClient.messages`."""
        return self._groups.messages(self.id, agent_id=agent_id, roles=roles, order=order, limit=limit)

    async def reset(self) -> "Group":
        """Removes all messages from the windows of its agents. See `GroupsClient.reset`. Returns the handle itself."""
        self.proto = (await self._groups.reset(self.id)).proto
        return self

    async def sleep(self, *, waits: bool = False, request_id: str = "") -> list[runs_pb2.Run]:
        """Starts the background runs of a sleeptime group now. See `SleeptimeClient.start`."""
        return await self._groups.sleeptime.start(group_id=self.id, waits=waits, request_id=request_id)

    async def preview_sleep(self) -> groups_service_pb2.PreviewSleeptimeRunsResponse:
        """Returns what `sleep` would send to the members: the transcript and the requests. Changes nothing."""
        return await self._groups.sleeptime.preview(group_id=self.id)

    async def refresh(self) -> "Group":
        """Reads `proto` from the server. Returns the handle itself."""
        self.proto = (await self._groups.get(self.id)).proto
        return self

    async def update(self, **fields: Any) -> "Group":
        """Updates fields of the group. Takes the fields of `GroupsClient.update`. Returns the handle itself."""
        self.proto = (await self._groups.update(self.id, **fields)).proto
        return self

    async def delete(self) -> None:
        """Deletes the group and cancels its runs. Its agents and their messages are kept."""
        await self._groups.delete(self.id)

    async def _with_speakers(self, events: AsyncIterator[runs_pb2.RunEvent]) -> AsyncIterator[GroupEvent]:
        speakers = _Speakers(self._groups.agents)
        async for event in events:
            yield await speakers.attribute(event)


class _Speakers:
    """The agents of a stream of a group run.

    A run of a sleeptime group is a turn of its manager: its events have no agent id, and all are the manager's. The
    name of an agent whose turn began before the stream did is read from the server.
    """

    def __init__(self, agents: "agents_service_pb2_grpc.AgentServiceAsyncStub") -> None:
        self._agents = agents
        self._names: dict[str, str] = {}
        self._selections: set[str] = set()
        self._only_agent_id = ""

    async def attribute(self, event: runs_pb2.RunEvent) -> GroupEvent:
        """Returns the event with the agent that it comes from."""
        if event.HasField("accepted"):
            self._only_agent_id = event.accepted.agent_id
        agent_id = event.agent_id or self._only_agent_id
        if not agent_id:
            return GroupEvent(event)
        if event.HasField("member_turn_started"):
            self._names[agent_id] = event.member_turn_started.agent_name
            if event.member_turn_started.is_selection:
                self._selections.add(event.child_run_id)
        elif agent_id not in self._names:
            self._names[agent_id] = await self._name(agent_id)
        is_selection = bool(event.child_run_id) and event.child_run_id in self._selections
        return GroupEvent(event, agent_id, self._names[agent_id], is_selection)

    async def _name(self, agent_id: str) -> str:
        try:
            request = agents_service_pb2.GetAgentRequest(agent_id=agent_id)
            return (await self._agents.GetAgent(request)).agent.name
        except NotFound:  # deleted since
            return agent_id


class GroupsClient:
    """Calls of GroupService, as `client.groups`."""

    def __init__(self, channel: Channel, runs: RunsClient, sleeptime: "SleeptimeClient") -> None:
        self.runs = runs
        self.sleeptime = sleeptime
        self.agents = agents_service_pb2_grpc.AgentServiceStub(channel)
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
        return Group(self, (await self.stub.CreateGroup(request, timeout=_CHANGE_SECONDS)).group)

    async def get(self, group_id: str) -> Group:
        """Returns the group with an id. Raises NotFound."""
        response = await self.stub.GetGroup(groups_service_pb2.GetGroupRequest(group_id=group_id))
        return Group(self, response.group)

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
            yield Group(self, proto)

    async def find_managed_by(self, agent_id: str) -> Group | None:
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
        return Group(self, (await self.stub.UpdateGroup(request, timeout=_CHANGE_SECONDS)).group)

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
        return Group(self, (await self.stub.ResetGroupMessages(request, timeout=_CHANGE_SECONDS)).group)


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


class SleeptimeClient:
    """Calls of GroupService about sleeptime, as `client.sleeptime`.

    Errors: NotFound; FailedPrecondition if the agent manages no sleeptime group, or the group is of another kind.
    """

    def __init__(self, channel: Channel, runs: RunsClient) -> None:
        self._stub = groups_service_pb2_grpc.GroupServiceStub(channel)
        self._runs = runs

    async def start(
        self, *, agent_id: str | None = None, group_id: str | None = None, waits: bool = False, request_id: str = ""
    ) -> list[runs_pb2.Run]:
        """Starts the background runs of a sleeptime group now, with all messages that no transcript contains yet.

        Args:
            agent_id: the agent whose memory is maintained.
            group_id: its sleeptime group, instead of the agent.
            waits: return the runs after they have ended, instead of right after their start.
            request_id: the idempotency key, to get the same runs again; empty creates a new one.

        Returns:
            One run per member, in the order of the members; none if there are no new messages. With `waits`, each is
            followed by the runs that processed the messages for which it had no space.
        """
        request = groups_service_pb2.StartSleeptimeRunsRequest(
            request_id=request_id, target=_target(agent_id, group_id)
        )
        runs = list((await self._stub.StartSleeptimeRuns(request)).runs)
        return [ended for run in runs async for ended in self.follow(run.id)] if waits else runs

    async def follow(self, run_id: str) -> AsyncIterator[runs_pb2.Run]:
        """Waits for the end of a sleeptime run, and of the runs that process what it had no space for. Yields each."""
        yield await self._runs.wait(run_id)
        async for rest in self._runs.list(parent_run_id=run_id, origins=("sleeptime",)):
            async for run in self.follow(rest.id):
                yield run

    async def preview(
        self, *, agent_id: str | None = None, group_id: str | None = None
    ) -> groups_service_pb2.PreviewSleeptimeRunsResponse:
        """Returns what `start` would send: the transcript, and the request to each member's model. Changes nothing."""
        request = groups_service_pb2.PreviewSleeptimeRunsRequest(target=_target(agent_id, group_id))
        return await self._stub.PreviewSleeptimeRuns(request)

    async def settings(self) -> groups_service_pb2.SleeptimeSettings:
        """Returns the settings of the organization. An absent field has the server's default."""
        request = groups_service_pb2.GetSleeptimeSettingsRequest()
        return (await self._stub.GetSleeptimeSettings(request)).settings

    async def update_settings(
        self, *, max_concurrent_runs: int | None, request_id: str = ""
    ) -> groups_service_pb2.SleeptimeSettings:
        """Updates the settings of the organization, and returns them.

        Args:
            max_concurrent_runs: the number of sleeptime runs that run at the same time. 0 stops new ones; None is the
                server's default.
            request_id: the idempotency key; empty creates a new one.
        """
        request = groups_service_pb2.UpdateSleeptimeSettingsRequest(
            request_id=request_id,
            settings=groups_service_pb2.SleeptimeSettings(max_concurrent_runs=max_concurrent_runs),
        )
        request.update_mask.paths.append("max_concurrent_runs")
        return (await self._stub.UpdateSleeptimeSettings(request)).settings


def _target(agent_id: str | None, group_id: str | None) -> groups_service_pb2.SleeptimeTarget:
    if (agent_id is None) == (group_id is None):
        raise InvalidArgument("Set exactly one of agent_id and group_id.", field="target")
    if agent_id is not None:
        return groups_service_pb2.SleeptimeTarget(agent_id=agent_id)
    return groups_service_pb2.SleeptimeTarget(group_id=group_id or "")
