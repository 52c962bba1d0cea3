"""A manager with partners, and views of what the partners received."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunOrigin
from mnemesh_types.messages import Message, Role, text_of

from ..support.model import call, say
from ..support.world import ME, Process, World

Answer = Callable[[LlmRequest], LlmAnswer]


def is_partner(request: LlmRequest) -> bool:
    """Returns whether a request comes from a partner."""
    names = {tool.name for tool in request.tools}
    return bool(names & {"memory_finish_edits", "store_memories", "rethink_user_memory", "finish_rethinking_memory"})


def finish_at_once(request: LlmRequest) -> LlmAnswer:
    return call("memory_finish_edits")


def answer_everything(manager: Answer = lambda _: say("Yes."), partner: Answer = finish_at_once) -> Answer:
    """Returns a script by which the manager and its partners answer."""
    return lambda request: partner(request) if is_partner(request) else manager(request)


@dataclass
class Partners:
    """A manager, its group, and its partners."""

    world: World
    manager: Agent
    group: Group
    members: tuple[Agent, ...]
    transcripts: list[str] = field(default_factory=list)

    async def inputs(self, process: Process, member: int = 0) -> list[str]:
        """The transcripts of a partner's runs, oldest first."""
        return [
            "\n".join(text_of(message.content) for message in run.input)
            for run in await self.runs(process, member)
            if run.input
        ]

    async def runs(self, process: Process, member: int = 0) -> Sequence[Run]:
        """The sleeptime runs of a partner, oldest first."""
        where = RunFilter(agent_ids=(self.members[member].id,), origins=(RunOrigin.SLEEPTIME,))
        return (await process.runs.list(ME, where, PageQuery(1000, ascending=True))).items

    async def current(self, process: Process) -> Group:
        """The group as it is stored."""
        return await process.stores.groups.get(self.group.organization_id, self.group.id)

    def rows(self) -> list[Message]:
        """The manager's messages in recall."""
        return sorted(self.world.recall.rows[self.manager.id], key=lambda message: message.sequence_id)


async def partners(
    world: World,
    process: Process,
    *,
    members: int = 1,
    kind: AgentType = AgentType.LETTA_V1,
    member_kind: AgentType = AgentType.SLEEPTIME,
    turns_counter: int = 0,
    **config: Any,
) -> Partners:
    """Creates a manager with partners that share its block `human`."""
    world.model.script = answer_everything()
    manager = await world.agent(process, kind)
    await process.stores.agents.update(
        None, manager.organization_id, manager.id, lambda agent: replace(agent, enable_sleeptime=True)
    )
    blocks = await world.blocks.get(manager.id)
    assert blocks is not None
    ids = tuple(block.id for block in blocks.blocks)
    crew = [
        await process.lifecycle.create(ME, None, draft(member_kind, f"partner-{number}", ids))
        for number in range(members)
    ]
    is_voice = member_kind is AgentType.VOICE_SLEEPTIME
    group = Group(
        new_id("group"),
        manager.organization_id,
        process.clock.now(),
        process.clock.now(),
        agent_ids=tuple(agent.id for agent in crew),
        manager=ManagerConfig(ManagerType.VOICE_SLEEPTIME if is_voice else ManagerType.SLEEPTIME, manager.id, **config),
        turns_counter=turns_counter,
    )
    await process.stores.groups.create(None, group)
    return Partners(world, manager, group, tuple(crew))


def draft(kind: AgentType, name: str, block_ids: tuple[str, ...]) -> AgentDraft:
    return AgentDraft(kind, name=name, block_ids=block_ids, system="You tidy up.\n{CORE_MEMORY}")


def said(transcripts: Sequence[str]) -> list[str]:
    """The users' words in transcripts, in order."""
    return [
        text for each in transcripts for text in re.findall(r'user: \{"type": "user_message", "message": "(.*?)"', each)
    ]


def visible(rows: Sequence[Message]) -> int:
    """The number of messages that a transcript shows."""
    return sum(message.role in (Role.USER, Role.ASSISTANT) for message in rows)
