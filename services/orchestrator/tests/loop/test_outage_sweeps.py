"""Outages at every call of a turn, before and after its effect: the run is delayed, and its result is the same."""

from pathlib import Path
from typing import Any

import pytest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_testkit.plugin import Sample

from ..support.faults import Faults
from ..support.model import by_place
from ..support.world import World, kinds, opened, require_valid
from .five_tools import FIVE_TOOLS, HEARTBEATS, require_each_effect_once, transcript

TIERS = ("blocks", "recall", "archival", "tools")
OWN_CALLS = ("runs.find_unfinished_decision", "runs.journal", "runs.write", "runs.finish")
UNAVAILABLE = 40
"""Calls that fail in a row, with the pauses between them: about seven minutes."""
KINDS = [(AgentType.LETTA_V1, FIVE_TOOLS), (AgentType.MEMGPT_V2, HEARTBEATS)]


async def turn_of(world: World, kind: AgentType, script: tuple[Any, ...], fault: Faults) -> tuple[Agent, list[str]]:
    """Runs a turn of a new agent under a fault, and returns its events."""
    world.faults, world.model.requests, world.waits = Faults(), [], []
    world.blocks.effects.clear()
    agent = await world.agent(world.process(), kind, include_base_tool_rules=False)
    world.model.script = by_place(*script)
    world.faults = fault
    process = world.process()
    received = kinds(await process.send(agent, "Do it all."))
    run = await process.outcome(agent)
    assert run.status is RunStatus.COMPLETED, run.error
    return agent, received


@pytest.mark.parametrize(("kind", "script"), KINDS, ids=["plain", "heartbeats"])
@pytest.mark.parametrize("effect", ["none", "lost"])
async def test_outage_at_any_call_delays_the_run_and_changes_nothing(
    tmp_path: Path, kind: AgentType, script: tuple[Any, ...], effect: str, sample: Sample
) -> None:
    async with opened(tmp_path) as world:
        whole = Faults()
        agent, reported = await turn_of(world, kind, script, whole)
        expected, calls = transcript(world, agent), list(whole.calls)
        began = calls.index("model.stream")
        swept = [(place, name) for place, name in enumerate(calls) if place > began and name.split(".")[0] in TIERS]
        assert len(swept) > 12
        for place, name in sample(swept, 16):
            fault = failing_at(place, name, effect)
            agent, received = await turn_of(world, kind, script, fault)
            where = f"call {place}, {name}"
            assert received == reported, where
            assert transcript(world, agent) == expected, where
            require_valid(world.window(agent).messages)
            await require_each_effect_once(world, agent)
            assert len(world.model.requests) == len(script), f"{where}: an answer was asked for again"
            assert len(world.recall.rows[agent.id]) == len(world.window(agent).messages), where
            if effect == "none" and name != "archival.summary":
                assert sum(world.waits) > 180, f"{where}: it retried for minutes"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "script"), KINDS, ids=["plain", "heartbeats"])
@pytest.mark.parametrize("effect", ["none", "lost"])
async def test_outage_of_the_own_database_at_any_call_neither_fails_a_run_nor_repeats_anything(
    tmp_path: Path, kind: AgentType, script: tuple[Any, ...], effect: str
) -> None:
    async with opened(tmp_path) as world:
        whole = Faults()
        agent, received = await turn_of(world, kind, script, whole)
        expected, calls = transcript(world, agent), list(whole.calls)
        started = calls.index("runs.start")
        swept = [(place, name) for place, name in enumerate(calls) if place > started and name in OWN_CALLS]
        assert len(swept) > 5
        for place, name in swept:
            world.faults, world.model.requests = Faults(), []
            world.blocks.effects.clear()
            agent = await world.agent(world.process(), kind, include_base_tool_rules=False)
            world.model.script = by_place(*script)
            world.faults = failing_at(place, name, effect)
            process = world.process()
            run = await process.start(agent, "Do it all.")
            await process.idle()
            world.faults.unavailable.clear()
            await process.recover()
            where = f"call {place}, {name}"
            run = await process.outcome(agent)
            assert run.status is RunStatus.COMPLETED, (where, run.error)
            assert kinds(await process.follow(run)) == received, where
            assert transcript(world, agent) == expected, where
            await require_each_effect_once(world, agent)
            assert len(world.model.requests) == len(script), f"{where}: an answer was asked for again"


def failing_at(place: int, name: str, effect: str) -> Faults:
    """At that call the whole service is unavailable for minutes, or the call takes effect and its answer is lost."""
    faults = Faults()

    async def fail(_: str) -> None:
        if len(faults.calls) == place + 1:
            if effect == "none":
                faults.unavailable = {f"{name.split('.', maxsplit=1)[0]}.": UNAVAILABLE}
            else:
                faults.lost = {name: 1}

    faults.on_call = fail
    return faults
