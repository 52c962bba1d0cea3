"""A chat with a group, and the display of a group's answers: each text with the name of its speaker."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh_cli.chat.conversation import Conversation
from mnemesh_cli.chat.render import JsonRenderer, LiveRenderer, MemoryTracker, PlainRenderer, show_sources
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.terminal import SPEAKERS, notice
from mnemesh_cli.display.views import print_memory
from mnemesh_client.errors import RunFailed
from mnemesh_client.groups import Group
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.results import GroupEvent
from mnemesh_kit.errors import MnemeshError

_QUIET_STOPS: Final = (
    agents_pb2.STOP_REASON_END_TURN,
    agents_pb2.STOP_REASON_TOOL_RULE,
    agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
    agents_pb2.STOP_REASON_UNSPECIFIED,
)


class GroupDisplay:
    """Displays the events of a group's runs with the names of the speakers."""

    def __init__(self, renderer: LiveRenderer | PlainRenderer) -> None:
        self._renderer = renderer
        self._colours: dict[str, str] = {}

    def show(self, item: GroupEvent) -> None:
        if isinstance(self._renderer, JsonRenderer):
            with self.speaking(item):
                self._renderer.show(item.event)
            return
        if item.is_selection:
            self._show_selection(item)
            return
        with self.speaking(item):
            if item.event.HasField("member_turn_ended"):
                self._show_end(item)
            else:
                self._renderer.show(item.event)

    def speaking(self, item: GroupEvent) -> AbstractContextManager[None]:
        """Within it, lines begin with the name of the agent that an event comes from."""
        colour = self._colours.setdefault(item.agent_id, SPEAKERS[len(self._colours) % len(SPEAKERS)])
        return self._renderer.speaking(item.agent_name, colour)

    def _show_selection(self, item: GroupEvent) -> None:
        event = item.event
        if event.message.HasField("assistant"):
            chosen = " ".join(text_of(event.message.assistant.content).split())
            self._renderer.show_note(f"({item.agent_name} selects: {chosen})")
        elif event.HasField("member_turn_ended") and event.member_turn_ended.HasField("error"):
            self._show_end(item)

    def _show_end(self, item: GroupEvent) -> None:
        ended = item.event.member_turn_ended
        if ended.HasField("error"):
            problem = error_text(RunFailed(item.event.child_run_id, ended.error))
            self._renderer.show_error(f"{item.agent_name}: {problem}")
        elif ended.stop_reason not in _QUIET_STOPS:
            name = agents_pb2.StopReason.Name(ended.stop_reason).removeprefix("STOP_REASON_").lower().replace("_", " ")
            self._renderer.show_note(f"(stopped: {name})")


class GroupConversation(Conversation):
    """A chat of a person, or of a program that writes to stdin, with a group."""

    def __init__(self, mnemesh: Mnemesh, group: Group) -> None:
        super().__init__(mnemesh, group.description or group.id)
        self._group = group
        self._display = GroupDisplay(self.renderer)
        self._trackers: dict[str, MemoryTracker] = {}

    async def begin(self) -> bool:
        """Follows a run of the group that began before this chat, and asks for the approvals that it waits for."""
        try:
            running = self.mnemesh.runs.list(group_id=self._group.id, statuses=("running",), order="asc")
            run_ids = [run.id async for run in running if not run.agent_id]
        except MnemeshError as error:
            self.renderer.show_error(error_text(error))
            return False
        if not run_ids:
            return True
        notice("the group is still answering an earlier message:")
        return await self.interruptible(self._turn(self._group.follow(run_ids[0])))

    async def send(self, text: str) -> bool:
        """Sends one message, and asks for the approvals that the turns need. Returns False if the run failed."""
        return await self.interruptible(self._turn(self._group.send(text, stream_tokens=self.live)))

    async def show_memory(self) -> None:
        """Prints the blocks of each agent of the group."""
        await self._group.refresh()
        for agent_id in (*self._group.agent_ids, *filter(None, (self._group.manager_agent_id,))):
            agent = await self.mnemesh.agents.get(agent_id)
            self.console.print(agent.name, style="bold", markup=False)
            print_memory(self.console, await agent.memory())

    async def _turn(self, items: AsyncIterator[GroupEvent]) -> bool:
        """Displays the events of one run. Returns False if it failed."""
        self.run_id, succeeded = "", True
        try:
            async for item in items:
                self.run_id = item.event.run_id or self.run_id
                await self._track(item)
                self._display.show(item)
                if self.live and item.agent_id and not item.is_selection:
                    with self._display.speaking(item):
                        await show_sources(self.renderer, self.mnemesh.agent_files(item.agent_id), item.event)
                succeeded = succeeded and not item.event.HasField("error")
                if item.event.message.HasField("approval_request") and not await self.decide_for(
                    item.event, item.agent_name, f"mnemesh chat --group {self._group.id}"
                ):
                    return False
        except MnemeshError as error:
            self.renderer.show_error(error_text(error))
            return False
        return succeeded

    async def _track(self, item: GroupEvent) -> None:
        """Displays the changes of an agent's memory after its tool calls. Only on a terminal."""
        if not self.live or not item.agent_id:
            return
        if item.event.HasField("member_turn_started") or item.event.message.HasField("tool_return"):
            tracker = self._trackers.setdefault(item.agent_id, MemoryTracker(self.mnemesh, item.agent_id))
            with self._display.speaking(item):
                self.renderer.show_changes(await tracker.changes())
