"""The interface of a processor, and the facts that it gets about a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

MEMORY_ORDER: Final = 900
"""The position of memory in the order of processors. The text after them is stored and sent to the model."""


class Refused(Exception):
    """Raised by an input processor to refuse the input. The text is returned to the client."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The origin of an input text.

    `run_id` is the run that the input will start. `message` and `part` are indexes from 0 within it.
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
    """The tool call of a result. `arguments` are those that the tool received."""

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
    """Changes the input of an agent before it is stored.

    It is called once for each text of an input. A request that is repeated while its first attempt is processed may
    call it again. It is never called for input that is stored, even after a crash.
    """

    order: int
    """Processors with a lower order run first. It must be below MEMORY_ORDER."""

    async def process(self, text: str, facts: InputFacts) -> str:
        """Returns the text that replaces this one: not empty, at most 1 MB.

        Raises:
            Refused: the input is refused and nothing of it is stored.
        """
        ...


class ToolResultProcessor(Protocol):
    """Changes the result of a tool before it is stored and before rules and the model see it.

    It is called once for each result, and again only if the process crashed before the result was stored.
    """

    order: int
    """Processors with a lower order run first. It must be below MEMORY_ORDER."""

    async def process(self, text: str, facts: ToolResultFacts) -> str:
        """Returns the text that replaces this one, at most 1 MB."""
        ...
