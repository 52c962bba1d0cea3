"""Groups whose agents follow scripts of their own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import DurableBody, MemberEvent, MessageEvent, RunEvent
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import MemberApproval, Run, RunRequest
from mnemesh_types.messages import TextPart

from .model import Item, say
from .world import ME, Process, World, each, told


@dataclass
class Cast:
    """Agents by name. Each says its lines one after the other; the last one is said again and again."""

    world: World
    agents: dict[str, Agent] = field(default_factory=dict)
    lines: dict[str, list[Item]] = field(default_factory=dict)
    requests: dict[str, list[LlmRequest]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.model.script = self._answer

    def _answer(self, request: LlmRequest) -> Item:
        name = request.messages[0].text.partition("I am ")[2].partition(".")[0]
        self.requests.setdefault(name, []).append(request)
        lines = self.lines.get(name) or [say(f"{name} speaks.")]
        return lines.pop(0) if len(lines) > 1 else lines[0]

    async def join(self, process: Process, *names: str, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> None:
        """Creates agents with these names."""
        for name in names:
            self.agents[name] = await self.world.agent(
                process, kind, name=name, system=f"I am {name}.\n{{CORE_MEMORY}}", **draft
            )

    def says(self, name: str, *items: Item | str) -> None:
        """Sets what an agent says next."""
        self.lines[name] = [say(item) if isinstance(item, str) else item for item in items]

    def ids(self, *names: str) -> tuple[str, ...]:
        return tuple(self.agents[name].id for name in names)

    async def group(
        self, process: Process, *names: str, kind: ManagerType = ManagerType.ROUND_ROBIN, by: str = "", **config: Any
    ) -> Group:
        """Stores a group of these members, managed by the agent `by`."""
        now = self.world.clock.now()
        manager = ManagerConfig(kind, self.agents[by].id if by else None, **config)
        group = Group(new_id("group"), ME.organization_id, now, now, agent_ids=self.ids(*names), manager=manager)
        stored, _ = await process.stores.groups.create(None, group)
        return stored

    def turn(self, name: str) -> list[str]:
        """Returns the texts of the window of an agent after its system message, with their roles."""
        return [f"{message.role.value}: {message.text}" for message in self.world.turn(self.agents[name])]

    def name(self, agent_id: str) -> str:
        return next(name for name, agent in self.agents.items() if agent.id == agent_id)

    def shown(self, events: Sequence[RunEvent]) -> list[str]:
        """Returns the durable events of a group run after its input, in one word or two each."""
        return [self._shown(body) for body in told(events)]

    def _shown(self, body: DurableBody) -> str:
        if not isinstance(body, MemberEvent):
            return type(body).__name__
        inner = body.body
        if isinstance(inner, MessageEvent):
            text = "".join(part.text for part in inner.content if isinstance(part, TextPart))
            return f"{self.name(body.agent_id)} {inner.kind}" + (f": {text}" if text else "")
        return f"{self.name(body.agent_id)} {type(inner).__name__} {getattr(inner, 'number', '')}".strip()


async def send(
    process: Process, group: Group, *texts: str, key: RequestKey | None = None, otid: str | None = None, **config: Any
) -> list[RunEvent]:
    """Sends a message to a group after a second, and returns all events of the run."""
    process.clock.advance(1)
    messages = _messages(texts, otid)
    stream = process.runs.send(ME, key, RunRequest("", "", messages, RunConfig(**config), group_id=group.id))
    return [event async for event in each(stream)]


async def start(
    process: Process, group: Group, *texts: str, key: RequestKey | None = None, otid: str | None = None, **config: Any
) -> Run:
    """Sends a message to a group in the background after a second."""
    process.clock.advance(1)
    return await process.runs.start(
        ME, key, RunRequest("", "", _messages(texts, otid), RunConfig(**config), group_id=group.id)
    )


def _messages(texts: Sequence[str], otid: str | None) -> list[InputMessage]:
    return [InputMessage((TextPart(text),), otid=otid) for text in texts or ("Hello",)]


def bodies(events: Sequence[RunEvent], kind: type[Any]) -> list[Any]:
    """Returns the bodies of one kind, those of agents included."""
    inner = [event.body.body if isinstance(event.body, MemberEvent) else event.body for event in events]
    return [body for body in inner if isinstance(body, kind)]


async def waiting(process: Process, run: Run) -> MemberApproval:
    """Returns the approval that a run of a group waits for."""
    while not (found := (await process.runs.get(ME, run.id)).waiting_for):
        await asyncio.sleep(0.005)
    (approval,) = found
    return approval
