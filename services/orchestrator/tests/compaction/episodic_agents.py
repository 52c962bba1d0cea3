"""Agents whose windows are compacted in the mode episodic."""

from typing import Any

import pytest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_types.agents import CompactionSettings

from ..support.world import ME, Process, World
from .conftest import small_agent

EPISODIC = CompactionSettings("episodic")


KINDS = pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2], ids=["v3", "v2"])


async def episodic_agent(world: World, process: Process, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> Agent:
    return await small_agent(world, process, kind, compaction_settings=EPISODIC, **draft)


async def compact(
    process: Process, agent: Agent, settings: CompactionSettings | None = None, *, dry_run: bool = False
) -> str:
    key = None
    conversation = (agent.id, agent.default_conversation_id)
    return (await process.compactions.compact(ME, key, *conversation, settings, dry_run=dry_run)).summary
