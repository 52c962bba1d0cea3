"""A turn with five calls of tools, and what it must leave behind."""

import re

from mnemesh_orchestrator.model.agents import Agent

from ..support.model import call, say, together
from ..support.world import World, lines

FIVE_TOOLS = (
    call("archival_memory_insert", content="one"),
    call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
    together(call("archival_memory_insert", content="two"), call("memory_insert", label="human", new_str="of London")),
    call("archival_memory_search", query="zebra"),
    say("All done."),
)
"""The answers of the model to an agent of type letta_v1."""
HEARTBEATS = (
    call("archival_memory_insert", thinking="Keep.", content="one", request_heartbeat=True),
    call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada", request_heartbeat=True),
    together(
        call("archival_memory_insert", content="two", request_heartbeat=True),
        call("memory_insert", label="human", new_str="of London", request_heartbeat=True),
    ),
    call("archival_memory_search", query="zebra", request_heartbeat=True),
    call("send_message", message="All done."),
)
"""The same answers to an agent of type memgpt_v2, whose calls request heartbeats."""


def transcript(world: World, agent: Agent) -> list[str]:
    """Returns the content of the window without times, and of searches only the passages in any order."""
    return [
        " ".join(sorted(re.findall(r'"content": "[^"]*"', line)))
        if line.startswith("tool success of archival_memory_search")
        else re.sub(r'"time": "[^"]*"', "", line)
        for line in lines(world.window(agent).messages[1:])
    ]


async def require_each_effect_once(world: World, agent: Agent) -> None:
    """Checks that every call of the turn took effect, and none twice."""
    assert await world.archival.texts(agent.id) == ["one", "two"]
    assert world.blocks.value(agent.id, "human") == "Ada\nof London"
    assert len(world.blocks.effects) == len(set(world.blocks.effects)) == 2
