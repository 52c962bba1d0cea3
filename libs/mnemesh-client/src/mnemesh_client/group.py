"""The handle of one group: send messages to it, and see who speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from mnemesh.agents.v1 import groups_pb2, groups_service_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2

from mnemesh_client.errors import ApprovalRequired, NotFound, RunFailed
from mnemesh_client.group_events import GroupEvent, GroupReply
from mnemesh_client.inputs import Input, text_of
from mnemesh_client.messages import RoleName
from mnemesh_client.paging import Order
from mnemesh_client.transport import closing

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh


class Group:
    """The handle of a group. `proto` is the Group message as of the last call that returned it."""

    def __init__(self, mnemesh: Mnemesh, proto: groups_pb2.Group) -> None:
        self._mnemesh = mnemesh
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
            self._mnemesh.runs.send("", content, group_id=self.id, config=run_config, request_id=request_id)
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
        return await self._mnemesh.runs.start("", content, group_id=self.id, config=config, request_id=request_id)

    def follow(self, run_id: str, *, starting_after: int = 0) -> AsyncIterator[GroupEvent]:
        """Yields the events of a run of this group after a sequence number, and follows it to its end."""
        return self._with_speakers(self._mnemesh.runs.stream(run_id, starting_after=starting_after))

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
        async with closing(self._mnemesh.runs.answer(agent_id, decisions, **options)) as events:
            event = await anext(events)
        return await self._mnemesh.runs.get(event.run_id)

    async def cancel(self) -> dict[str, Any]:
        """Cancels the runs of the group, with the turns of its agents in them. Returns the outcome by run id."""
        return dict(await self._mnemesh.runs.cancel(group_id=self.id))

    def runs(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs of the group and the turns of its agents in them, newest first unless `order` is "asc"."""
        return self._mnemesh.runs.list(group_id=self.id, order=order, limit=limit)

    def messages(
        self,
        *,
        agent_id: str | None = None,
        roles: Sequence[RoleName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[message_pb2.Message]:
        """Yields the messages that its agents wrote or received in its runs. See `GroupsClient.messages`."""
        return self._mnemesh.groups.messages(self.id, agent_id=agent_id, roles=roles, order=order, limit=limit)

    async def reset(self) -> Group:
        """Removes all messages from the windows of its agents. See `GroupsClient.reset`. Returns the handle itself."""
        self.proto = (await self._mnemesh.groups.reset(self.id)).proto
        return self

    async def sleep(self, *, waits: bool = False, request_id: str = "") -> list[runs_pb2.Run]:
        """Starts the background runs of a sleeptime group now. See `SleeptimeClient.start`."""
        return await self._mnemesh.sleeptime.start(group_id=self.id, waits=waits, request_id=request_id)

    async def preview_sleep(self) -> groups_service_pb2.PreviewSleeptimeRunsResponse:
        """Returns what `sleep` would send to the members: the transcript and the requests. Changes nothing."""
        return await self._mnemesh.sleeptime.preview(group_id=self.id)

    async def refresh(self) -> Group:
        """Reads `proto` from the server. Returns the handle itself."""
        self.proto = (await self._mnemesh.groups.get(self.id)).proto
        return self

    async def update(self, **fields: Any) -> Group:
        """Updates fields of the group. Takes the fields of `GroupsClient.update`. Returns the handle itself."""
        self.proto = (await self._mnemesh.groups.update(self.id, **fields)).proto
        return self

    async def delete(self) -> None:
        """Deletes the group and cancels its runs. Its agents and their messages are kept."""
        await self._mnemesh.groups.delete(self.id)

    async def _with_speakers(self, events: AsyncIterator[runs_pb2.RunEvent]) -> AsyncIterator[GroupEvent]:
        speakers = _Speakers(self._mnemesh)
        async for event in events:
            yield await speakers.attribute(event)


class _Speakers:
    """The agents of a stream of a group run.

    A run of a sleeptime group is a turn of its manager: its events have no agent id, and all are the manager's. The
    name of an agent whose turn began before the stream did is read from the server.
    """

    def __init__(self, mnemesh: Mnemesh) -> None:
        self._mnemesh = mnemesh
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
            return (await self._mnemesh.agents.get(agent_id)).name
        except NotFound:  # deleted since
            return agent_id
