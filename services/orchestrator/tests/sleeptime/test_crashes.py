"""A crash at any point of a manager's or a partner's turn: each message is in one transcript, each note stored once."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.runs import RunOrigin
from mnemesh_testkit.plugin import Sample
from mnemesh_types.messages import Role

from ..support.faults import Crash, Faults
from ..support.model import call, say
from ..support.world import Process, World, crashed, opened, require_valid
from .partners import Partners, answer_everything, partners, said

TURNS = 7
SLEEPTIME_CALLS = (
    "runs.finish",
    "runs.claim_next",
    "agents.get",
    "recall.list_messages",
    "runs.store_transcript",
    "blocks.edit",
    "recall.commit_step",
    "leases.startable",
    "runs.write",
)


def place(request: LlmRequest) -> tuple[int, str]:
    """The number of answers since the last user message, and its text."""
    number, text = 0, ""
    for message in request.messages:
        if message.role is Role.ASSISTANT:
            number += 1
        elif message.is_from_user:
            number, text = 0, message.text
    return number, text


def manager(request: LlmRequest) -> LlmAnswer:
    number, text = place(request)
    if number == 0:
        return call("archival_memory_insert", content=f"passage of {text}")
    return say(f"Answer to {text}")


def partner(request: LlmRequest) -> LlmAnswer:
    number, text = place(request)
    if number == 0:
        return call("memory_insert", label="human", new_str=f"Noted {' '.join(said([text]))}")
    return call("memory_finish_edits")


async def live(world: World, crew: Partners, process: Process) -> None:
    """Sends every turn. Those that were stored before a crash are not repeated."""
    for turn in range(TURNS):
        await process.send(crew.manager, f"t{turn}", otid=f"otid-{turn}")
        await process.idle()


async def survive(directory: Path, point: int | None) -> int:
    """Lives with a crash at a point, checks what was written, and returns the number of points."""
    async with opened(directory) as world:
        process = world.process()
        crew = await partners(world, process, frequency=3)
        world.model.script = answer_everything(manager, partner)
        world.faults = Faults()
        world.faults.crashes_at = point
        process = world.process()
        with suppress(Crash):
            await live(world, crew, process)
        await crashed(process)
        points = world.faults.points
        world.faults = Faults()
        process = world.process()
        await process.recover()
        await process.recover()  # what the first recovery started
        await live(world, crew, process)
        await require_each_message_once(world, crew, process)
        return points


async def require_each_message_once(world: World, crew: Partners, process: Process) -> None:
    texts = await crew.inputs(process)
    # A cancelled life may end a turn without the client: the counter has the stored turns, each once.
    group = await crew.current(process)
    assert group.turns_counter == TURNS
    assert said(texts) == [f"t{turn}" for turn in range(6)], "laid end to end"
    whole = "\n".join(texts)
    for turn in range(6):
        assert len(re.findall(rf"assistant: Answer to t{turn}\n", f"{whole}\n")) == 1
    assert whole.count("assistant: Calling tool archival_memory_insert") == 6
    assert world.blocks.value(crew.manager.id, "human") == "Nothing yet.\nNoted t0 t1 t2\nNoted t3 t4 t5"
    assert len(world.blocks.effects) == len(set(world.blocks.effects)) == 2
    runs = await crew.runs(process)
    assert [run.lineage.origin for run in runs] == [RunOrigin.SLEEPTIME] * 2
    require_valid(world.window(crew.members[0]).messages)
    require_valid(world.window(crew.manager).messages)


async def test_crash_at_any_point_loses_and_repeats_nothing(tmp_path: Path, sample: Sample) -> None:
    points = await survive(tmp_path, None)
    assert points > 100
    for point in sample(range(0, points, 5), 16, 3):
        await survive(tmp_path, point)


@pytest.mark.parametrize("fault", ["unavailable", "lost"])
async def test_outage_of_any_call_loses_and_repeats_nothing(tmp_path: Path, fault: str, sample: Sample) -> None:
    """A call fails before or after it took effect, several times in a row, wherever it is made."""
    names: list[str] = []
    for name in ["", *sample(SLEEPTIME_CALLS, 5)]:
        async with opened(tmp_path) as world:
            process = world.process()
            crew = await partners(world, process, frequency=3)
            world.model.script = answer_everything(manager, partner)
            if name:
                getattr(process.faults, fault)[name] = 3
            await live(world, crew, process)
            getattr(process.faults, fault).clear()
            await process.recover()
            await require_each_message_once(world, crew, process)
            names += process.faults.calls
    assert set(SLEEPTIME_CALLS) <= set(names)
