"""What a processor is, and what it is told of the text that it gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

MEMORY_ORDER: Final = 900
"""Where memory stands in the order of processors: what those before it leave is what is kept, and what a model sees."""


class Refused(Exception):
    """Raised by an input processor: the input is not taken. The text is told to the client."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Whose input a text is a part of.

    `run_id` is that of the run which the input will begin; `message` and `part` count from 0 within it.
    """

    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    run_id: str
    message: int
    part: int
    role: Literal["user", "system", "assistant"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResultFacts:
    """Which call a result is of, and for whom it was made. `arguments` are those that the tool got."""

    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    run_id: str
    step_id: str
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    ok: bool


class InputProcessor(Protocol):
    """Changes what is sent to an agent, before it is stored.

    It is asked once for each text of an input. A request that is repeated while it is being taken may ask again; what
    is stored is not asked for again, whatever crashes.
    """

    order: int
    """Lower ones come first; below MEMORY_ORDER."""

    async def process(self, text: str, facts: InputFacts) -> str:
        """The text that takes the place of this one: not empty, at most 1 MB.

        Raises:
            Refused: the input is not taken, and nothing of it is stored.
        """
        ...


class ToolResultProcessor(Protocol):
    """Changes what a tool came to, before it is stored and any rule or model sees it.

    It is asked once for each result; again only where the process died before the result was stored.
    """

    order: int
    """Lower ones come first; below MEMORY_ORDER."""

    async def process(self, text: str, facts: ToolResultFacts) -> str:
        """The text that takes the place of this one, at most 1 MB."""
        ...
