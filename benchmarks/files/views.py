"""Measures the cost that the files of an agent add to a turn."""

from functools import partial
from typing import Any, Final

from mnemesh_client import Agent, Mnemesh, window

from benchmarks.files.texts import text
from benchmarks.files.timing import figures, timed
from benchmarks.mesh import RunningMesh
from benchmarks.processes import difference

_FILES: Final = 20
_OPEN: Final = 5
_WINDOW_LINES: Final = 100
_WARM_UP: Final = 5


async def measure_views(mesh: RunningMesh, client: Mnemesh, turns: int) -> dict[str, Any]:
    """Alternates turns of three agents: without files, with closed files, and with open windows."""
    folder = await client.folders.create("views", description="Reports.")
    stored = [
        await client.files.upload(folder.id, text(number, 20_000).encode(), name=f"view-{number:02}.md")
        for number in range(_FILES)
    ]
    async for _ in client.files.wait_all(each.file.id for each in stored):
        pass
    agents = {
        kind: await client.agents.create(kind, model="openai/one-step", blocks={"human": "", "persona": ""})
        for kind in ("no files", "closed files", "open files")
    }
    for kind in ("closed files", "open files"):
        await agents[kind].files.attach(folder.id)
    names = [file.name async for file in agents["open files"].files.list(limit=_OPEN)]
    await agents["open files"].files.open(*(window(name, 0, _WINDOW_LINES) for name in names))
    took: dict[str, list[float]] = {kind: [] for kind in agents}
    cpu: dict[str, float] = dict.fromkeys(agents, 0.0)
    for number in range(_WARM_UP + turns):
        for kind, agent in agents.items():
            before = mesh.processes.cpu_ms()
            milliseconds = await timed(partial(agent.ask, "Hello."))
            if number >= _WARM_UP:
                took[kind].append(milliseconds)
                used = difference(before, mesh.processes.cpu_ms())
                cpu[kind] += used["orchestrator"] + used["files"]
    return {
        "turns": turns,
        "files": _FILES,
        "open": _OPEN,
        "lines": _WINDOW_LINES,
        "kinds": {kind: {**figures(took[kind]), "cpu_ms": round(cpu[kind] / turns, 2)} for kind in agents},
        "directories": await _directories(agents["open files"], turns),
    }


async def _directories(agent: Agent, times: int) -> dict[str, Any]:
    """Measures the call of the files section: unchanged since a revision, and whole."""
    revision = (await agent.files.directories()).revision
    calls = {"unchanged": partial(agent.files.directories_since, revision), "whole": agent.files.directories}
    return {name: figures([await timed(call) for _ in range(times)]) for name, call in calls.items()}
