"""The calls of one answer run in parallel if their tools permit it, else one by one. Their events are in order."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from mnemesh_orchestrator.model.rules import RunFirst, ToolResult
from mnemesh_types.agents import ModelSettings

from ..support.model import call, say, together
from ..support.world import Process, World, lines, require_valid

TOGETHER = ModelSettings(parallel_tool_calls=True)


class Watch:
    """Records when tools begin and end. The expected tools end once all of them have begun."""

    def __init__(self, world: World, waited_for: int) -> None:
        self.noted: list[str] = []
        self._begun, self._waited_for, self._all = 0, waited_for, asyncio.Event()
        world.faults.on_call, world.faults.on_effect = self._begins, self._ends

    async def _begins(self, name: str) -> None:
        if name != "tools.execute":
            return
        self.noted.append("begin")
        self._begun += 1
        if self._begun == self._waited_for:
            self._all.set()
        if self._begun <= self._waited_for:
            await asyncio.wait_for(self._all.wait(), 30)

    async def _ends(self, name: str) -> None:
        if name == "tools.execute":
            self.noted.append("end")


def counting(world: World, name: str, *, parallel: bool) -> None:
    def run(given: Mapping[str, Any], _: Mapping[str, str]) -> Any:
        return ToolResult(ok=True, text=f"{name} {given['n']}"), {}

    world.tools.add(name, run, parallel=parallel)


@pytest.mark.parametrize(
    ("permitted", "expected"),
    [
        ((True, True, True), ["begin"] * 3 + ["end"] * 3),
        ((False, False, False), ["begin", "end"] * 3),
        ((True, True, False), ["begin", "begin", "end", "end", "begin", "end"]),
    ],
    ids=["all", "none", "two of three"],
)
async def test_tools_that_permit_it_run_in_parallel(
    world: World, process: Process, permitted: tuple[bool, ...], expected: list[str]
) -> None:
    names = [f"tool_{place}" for place in range(3)]
    for name, parallel in zip(names, permitted, strict=True):
        counting(world, name, parallel=parallel)
    agent = await world.agent(process, tool_names=tuple(names), model_settings=TOGETHER)
    watch = Watch(world, max(1, sum(permitted)))
    world.model.follow(together(*(call(name, n=n) for n, name in enumerate(names))), say("Done."))
    await process.send(agent)
    assert watch.noted == expected
    assert [line for line in lines(world.turn(agent)) if line.startswith("tool ")] == [
        f"tool success of {name}: {name} {n}" for n, name in enumerate(names)
    ]
    require_valid(world.window(agent).messages)


async def test_rules_about_order_run_calls_one_after_another(world: World, process: Process) -> None:
    counting(world, "look", parallel=True)
    agent = await world.agent(process, tool_names=("look",), tool_rules=(RunFirst("look"),), model_settings=TOGETHER)
    watch = Watch(world, 1)
    world.model.follow(together(call("look", n=1), call("look", n=2)), say("Done."))
    await process.send(agent)
    assert watch.noted == ["begin", "end"] * 2
