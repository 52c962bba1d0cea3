"""A chat with one agent."""

from collections.abc import AsyncIterator
from typing import Final

from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2, models_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.conversation import ChatCommand, Conversation
from mnemesh_cli.chat.render import LiveRenderer, MemoryTracker, shortened, show_sources
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.terminal import SPEAKERS, notice
from mnemesh_cli.display.views import print_memory, print_results
from mnemesh_client.agent import Agent
from mnemesh_client.inputs import new_request_id, text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, NotFound
from rich.console import Console
from rich.text import Text

_UNDONE_CHARS: Final = 60


async def before_last_message(mnemesh: Mnemesh, conversation_id: str) -> tuple[str, str]:
    """Continues before the last message of a conversation's user, in a new conversation.

    The conversation itself, its messages in recall, and what the turn changed in memory stay.

    Returns:
        The text of that message, and the id of the new conversation.

    Raises:
        NotFound: the context window has no message of the user.
    """
    messages = (await mnemesh.messages.window(conversation_id)).messages
    users = [number for number, message in enumerate(messages) if message.role == message_pb2.ROLE_USER]
    if not users or users[-1] == 0:
        raise NotFound("There is no message to take back.", resource_id=conversation_id)
    last = messages[users[-1] - 1]
    if last.role == message_pb2.ROLE_SYSTEM:  # every conversation has its own system message
        agent_id = (await mnemesh.conversations.get(conversation_id)).agent_id
        continued = await mnemesh.conversations.create(conversations_pb2.Conversation(agent_id=agent_id))
    else:
        request = conversations_service_pb2.ForkConversationRequest(
            request_id=new_request_id(), conversation_id=conversation_id, until_message_id=last.id
        )
        continued = (await mnemesh.conversations.stub.ForkConversation(request)).conversation
    return text_of(messages[users[-1]].content), continued.id


async def price_of(mnemesh: Mnemesh, agent: Agent) -> models_pb2.ModelPrice | None:
    """Returns the price of the agent's model. None if it is unknown."""
    try:
        model = await mnemesh.models.get(agent.model)
    except MnemeshError:
        return None
    return model.price if model.HasField("price") else None


async def show_models(mnemesh: Mnemesh, console: Console, agent: Agent) -> None:
    """Prints the models of the mesh. That of the agent is marked."""
    await agent.refresh()
    handles = {model.handle: model.context_window async for model in mnemesh.models.list() if not model.hidden}
    for handle, tokens in {agent.model: handles.get(agent.model, 0), **handles}.items():
        marked = handle == agent.model
        size = f"  {tokens:,} tokens" if tokens else ""
        console.print(
            Text.assemble(("› " if marked else "  "), (handle, "bold" if marked else ""), (size, "dim")), soft_wrap=True
        )


async def use_model(mnemesh: Mnemesh, console: Console, agent: Agent, handle: str) -> None:
    """Makes the agent use a model.

    Raises:
        NotFound: MODEL_UNKNOWN.
    """
    await mnemesh.models.get(handle)
    await agent.update(model=handle)
    console.print(f"{agent.name} uses {handle} from the next message on", style="dim", markup=False)


class AgentConversation(Conversation):
    """A chat of a person, or of a program that writes to stdin, with an agent."""

    def __init__(self, mnemesh: Mnemesh, agent: Agent, conversation_id: str | None = None) -> None:
        super().__init__(mnemesh, agent.name)
        self._agent = agent
        self._conversation_id = conversation_id
        self._pending: tuple[message_pb2.ToolCall, ...] = ()
        self._tracker = MemoryTracker(mnemesh, agent.id) if self.live else None

    def commands(self) -> list[ChatCommand]:
        """Returns the commands of the chat, in the order of the help."""
        return [
            ChatCommand("/new", "", "begin a new conversation; the memory stays", self._begin_conversation),
            ChatCommand("/undo", "", "go back to before your last message; the memory stays", self._undo),
            ChatCommand("/model", "[HANDLE]", "show the models, or use another one", self._choose_model),
            ChatCommand("/search", "TEXT", "search the messages and passages", self._search),
            *super().commands(),
        ]

    async def begin(self) -> bool:
        """Follows a turn that began before this chat, and asks for decisions about pending tool calls."""
        try:
            await self._agent.refresh()
            running = await active_run(self.mnemesh, self._agent, self._conversation)
            self._pending = await list_pending_calls(self.mnemesh, self._agent, self._conversation)
            await self._read_price()
        except MnemeshError as error:
            self.renderer.show_error(error_text(error))
            return False
        if running:
            notice("the agent is still answering an earlier message:")
            return await self._follow(self.mnemesh.runs.stream(running))
        if not self._pending:
            return True
        notice("the agent is waiting for your approval:")
        request = runs_pb2.ApprovalRequestMessage(tool_calls=self._pending)
        self.renderer.show(runs_pb2.RunEvent(message=runs_pb2.MessageEvent(approval_request=request)))
        return await self._decide()

    async def send(self, text: str) -> bool:
        """Sends one message, and asks for the approvals that follow. Returns False if a turn failed."""
        if self.live and self._pending and not await self._decide():
            return False
        return await self._follow(
            self._agent.send(text, stream_tokens=self.live, conversation_id=self._conversation_id)
        )

    async def show_memory(self) -> None:
        """Prints the agent's blocks."""
        print_memory(self.console, await self._agent.memory())

    @property
    def _conversation(self) -> str:
        return self._conversation_id or self._agent.proto.default_conversation_id

    async def _begin_conversation(self, _: str) -> None:
        conversation = conversations_pb2.Conversation(agent_id=self._agent.id)
        created = await self.mnemesh.conversations.create(conversation)
        self._conversation_id, self._pending = created.id, ()
        notice(f"new conversation; `mnemesh chat --agent {self._agent.id} --conversation {created.id}` continues it")

    async def _undo(self, _: str) -> None:
        text, conversation_id = await before_last_message(self.mnemesh, self._conversation)
        self._conversation_id, self._pending = conversation_id, ()
        notice(f"forgot: {shortened(text, _UNDONE_CHARS)}")
        notice(f"`mnemesh chat --agent {self._agent.id} --conversation {conversation_id}` continues from here")

    async def _choose_model(self, handle: str) -> None:
        if not handle:
            await show_models(self.mnemesh, self.console, self._agent)
            return
        await use_model(self.mnemesh, self.console, self._agent, handle)
        await self._read_price()

    async def _search(self, query: str) -> None:
        await print_results(self._agent, query)

    async def _read_price(self) -> None:
        if isinstance(self.renderer, LiveRenderer):
            self.renderer.price = await price_of(self.mnemesh, self._agent)

    async def _decide(self) -> bool:
        """Asks for decisions about the pending calls, and follows the rest of the turn."""
        decisions = await self.ask_decisions(self._pending)
        return decisions is not None and await self._follow(self._answers(decisions))

    def _answers(self, decisions: list[message_pb2.ApprovalDecision]) -> AsyncIterator[runs_pb2.RunEvent]:
        return self._agent.answer(decisions, conversation_id=self._conversation_id)

    async def _follow(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        while await self.interruptible(self._turn(events)):
            if not self._pending:
                return True
            if not self.live:
                self.renderer.show_error("the agent is waiting for an approval; run `mnemesh chat` in a terminal")
                return False
            decisions = await self.ask_decisions(self._pending)
            if decisions is None:
                return False
            events = self._answers(decisions)
        return False

    async def _decide_below(self, event: runs_pb2.RunEvent) -> bool:
        """Displays the request of an agent whose reply the turn waits for, and asks for decisions."""
        asking = await self.mnemesh.agents.get(event.agent_id)
        with self.renderer.speaking(asking.name, SPEAKERS[0]):
            self.renderer.show(event)
        return await self.decide_for(event, asking.name, f"mnemesh chat --agent {self._agent.id}")

    async def _turn(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        """Displays the events of one turn. Returns False if it failed."""
        self.run_id, self._pending, succeeded = "", (), True
        tracker = self._tracker
        try:
            if tracker is not None:
                # Between turns, a partner or a person may have changed the memory.
                self.renderer.show_changes(await tracker.changes())
            async for event in events:
                self.run_id = event.run_id
                if event.HasField("message") and event.message.HasField("approval_request"):
                    if event.agent_id:
                        if not await self._decide_below(event):
                            return False
                        continue
                    self._pending = tuple(event.message.approval_request.tool_calls)
                self.renderer.show(event)
                if self.live:
                    await show_sources(self.renderer, self._agent.files, event)
                succeeded = succeeded and not event.HasField("error")
                if tracker is not None and event.HasField("message") and event.message.HasField("tool_return"):
                    self.renderer.show_changes(await tracker.changes())
        except MnemeshError as error:
            self.renderer.show_error(error_text(error))
            return False
        return succeeded


async def active_run(mnemesh: Mnemesh, agent: Agent, conversation_id: str) -> str:
    """Returns the id of the run that processes a conversation of the agent; empty if there is none."""
    async for run in mnemesh.runs.list(agent_id=agent.id, statuses=("created", "running"), order="asc"):
        if run.conversation_id == conversation_id:
            return run.id
    return ""


async def list_pending_calls(mnemesh: Mnemesh, agent: Agent, conversation_id: str) -> tuple[message_pb2.ToolCall, ...]:
    """Returns the tool calls in a conversation of the agent that wait for a decision."""
    if not agent.proto.HasField("pending_approval_request_id"):
        return ()
    return tuple(
        call
        for message in await mnemesh.messages.get(agent.proto.pending_approval_request_id)
        if message.conversation_id == conversation_id
        for call in message.tool_calls
    )
