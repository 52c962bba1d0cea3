"""The section of a request's system message about the skills of the client."""

from collections.abc import Sequence
from typing import Final

from mnemesh_orchestrator.model.run_config import ClientSkill
from mnemesh_orchestrator.prompt.closing_tags import neutral

_INTRODUCTION: Final = (
    "The client has these skills: instructions for tasks, each at a location. "
    "Read the instructions of a skill before you do what it describes."
)


def skills_section(skills: Sequence[ClientSkill]) -> str:
    """Returns the list of skills, in their order."""
    lines = (f"- {skill.name} ({skill.location}): {' '.join(skill.description.split())}" for skill in skills)
    return "\n".join(("<available_skills>", _INTRODUCTION, *map(neutral, lines), "</available_skills>"))
