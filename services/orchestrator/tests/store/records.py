"""Records that the suites of the stores have in common."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, JournalledAnswer, MessageEvent, RunEnd, RunEvent
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.inputs import InputMessage, sent_messages
from mnemesh_orchestrator.model.runs import Run, RunStatus, Step, StepStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

ORG, OTHER_ORG = new_id("org"), new_id("org")
ALL = PageQuery(100, ascending=True)


def an_agent(clock: FrozenClock, name: str = "Ada's", **fields: Any) -> Agent:
    agent_id = new_id("agent")
    fields.setdefault("organization_id", ORG)
    return Agent(
        id=agent_id,
        name=name,
        type=fields.pop("type", AgentType.LETTA_V1),
        system="You are a test.",
        model="scripted/one",
        created_at=clock.now(),
        updated_at=clock.now(),
        default_conversation_id=derive_id("conv", agent_id),
        **fields,
    )


def key(method: str = "CreateAgent", request_id: str = "r-1", fingerprint: str = "f", org: str = ORG) -> RequestKey:
    return RequestKey(org, method, request_id, fingerprint)


async def made(store: AgentStore, agent: Agent) -> Agent:
    await store.begin_creation(None, agent, b"{}")
    assert await store.activate(agent)
    return await store.get(agent.organization_id, agent.id)


def a_run(agent: Agent, clock: FrozenClock, *, otid: str | None = None, **fields: Any) -> Run:
    sent = (InputMessage((TextPart(fields.pop("text", "Hello")),), otid=otid),)
    return Run(
        id=new_id("run"),
        organization_id=fields.pop("organization_id", agent.organization_id),
        subject_id=new_id("user"),
        agent_id=agent.id,
        conversation_id=fields.pop("conversation_id", agent.default_conversation_id),
        created_at=clock.now(),
        updated_at=clock.now(),
        input=sent,
        sent=sent_messages(sent),
        **fields,
    )


def an_end(run: Run, clock: FrozenClock, reason: StopReason = StopReason.END_TURN, **fields: Any) -> Run:
    return replace(
        run,
        status=RunStatus.COMPLETED,
        stop_reason=reason,
        completed_at=clock.now(),
        total_ms=5,
        **fields,
    )


def an_event(run: Run, number: int, clock: FrozenClock) -> RunEvent:
    shown = MessageEvent("assistant", new_id("message"), "otid", clock.now(), (TextPart(f"Event {number}"),))
    return RunEvent(run.id, clock.now(), shown, number, new_id("step"))


def an_answer(step_id: str, clock: FrozenClock, text: str = "Hello.") -> JournalEntry:
    message = Message(new_id("message"), Role.ASSISTANT, clock.now(), (TextPart(text),))
    return JournalEntry(
        step_id, EntryKind.ANSWER, clock.now(), answer=JournalledAnswer(message, (), Usage(1, 2, 3), 4, "system")
    )


def a_step(run: Run, number: int, clock: FrozenClock, **fields: Any) -> Step:
    return Step(
        id=derive_id("step", run.id, str(number)),
        run_id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        number=number,
        model=fields.pop("model", "scripted/one"),
        provider="scripted",
        context_window=8_000,
        created_at=clock.now() + timedelta(seconds=number),
        status=StepStatus.SUCCESS,
        **fields,
    )


async def ran(runs: RunStore, agent: Agent, clock: FrozenClock) -> Run:
    """Starts and ends a run of the agent."""
    claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
    assert claim is not None
    await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
    return await runs.get(ORG, claim.run.id)


def a_group(clock: FrozenClock, *agents: Agent, **fields: Any) -> Group:
    fields.setdefault("organization_id", ORG)
    ids = tuple(agent.id for agent in agents)
    return Group(new_id("group"), created_at=clock.now(), updated_at=clock.now(), agent_ids=ids, **fields)


def managed_by(agent: Agent, type_: ManagerType = ManagerType.SLEEPTIME) -> ManagerConfig:
    return ManagerConfig(type_, agent.id)
