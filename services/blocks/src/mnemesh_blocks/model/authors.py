"""The authors of changes to blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_optional_text

MAX_CALL_ID: Final = 1000


@dataclass(frozen=True, slots=True)
class AgentAuthor:
    """An agent that edits a block by a tool call."""

    agent_id: str
    tool_call_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerAuthor:
    """A caller of the API, who may also write read-only blocks."""

    subject_id: str


Author = AgentAuthor | OwnerAuthor


def author_id(author: Author) -> str:
    """Returns the id of the agent or of the subject."""
    return author.subject_id if isinstance(author, OwnerAuthor) else author.agent_id


def require_valid_author(author: Author) -> Author:
    """Returns `author` if its ids can be stored.

    Raises:
        InvalidArgument: An id is malformed or too long.
    """
    if isinstance(author, AgentAuthor):
        require_id(author.agent_id, "agent", "author.agent.agent_id")
        require_optional_text(author.tool_call_id, "author.agent.tool_call_id", max_chars=MAX_CALL_ID)
        require_optional_text(author.run_id, "author.agent.run_id", max_chars=MAX_CALL_ID)
    return author
