"""The first texts of the block with which a partner describes its own work."""

from functools import cache
from importlib import resources
from typing import Final

from mnemesh_orchestrator.model.agents import AgentType

PERSONA_DESCRIPTION: Final = "How this agent maintains the memory that it shares. Only this agent sees the block."

_FILES: Final = {AgentType.SLEEPTIME: "sleeptime.txt", AgentType.VOICE_SLEEPTIME: "voice_sleeptime.txt"}


@cache
def partner_persona(agent_type: AgentType) -> str:
    """Returns the first text of the block of a partner of this type."""
    file = resources.files(__package__) / _FILES[agent_type]
    return file.read_text(encoding="utf-8").removesuffix("\n")
