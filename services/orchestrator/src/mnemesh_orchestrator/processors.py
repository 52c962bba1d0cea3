"""Processors of the operator: code from installed packages that changes inputs and tool results before they are stored.

Its public names are what a processor needs. docs/processors.md describes how to write one.
"""

import asyncio
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal, Protocol, cast

import structlog
from mnemesh_kit.config import ConfigError
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import TextPart

from mnemesh_orchestrator.errors import InputRefused, ProcessorFailed
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.rules import ToolResult
from mnemesh_orchestrator.model.runs import Run

MEMORY_ORDER: Final = 900
"""The position of memory in the order of processors. The text after them is stored and sent to the model."""

_log = structlog.get_logger("mnemesh.processors")

_MAX_TEXT_CHARACTERS: Final = 1_000_000

INPUT_GROUP: Final = "mnemesh.input_processors"
TOOL_RESULT_GROUP: Final = "mnemesh.tool_result_processors"

__all__ = ["MEMORY_ORDER", "InputFacts", "InputProcessor", "Refused", "ToolResultFacts", "ToolResultProcessor"]


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


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """A processor and the name that it is installed under."""

    name: str
    processor: Any


class Processors:
    """The processors that the operator has enabled. Without any, processing costs nothing."""

    def __init__(
        self, inputs: tuple[NamedProcessor, ...] = (), results: tuple[NamedProcessor, ...] = (), seconds: float = 5.0
    ) -> None:
        """Takes the processors in their order. `seconds` is the time limit of one processor for one text."""
        self._inputs = inputs
        self._results = results
        self._seconds = seconds
        self._abandoned: set[asyncio.Task[str]] = set()
        self.has_input_processors = bool(inputs)
        self.has_result_processors = bool(results)

    async def process_input(self, run: Run) -> tuple[InputMessage, ...]:
        """Returns the input of a new run as it is stored.

        Raises:
            InputRefused: a processor refuses it.
            ProcessorFailed: a processor raised an error, exceeded its time limit, or returned no text.
        """
        return tuple([await self._process_message(run, index, message) for index, message in enumerate(run.input)])

    async def _process_message(self, run: Run, index: int, message: InputMessage) -> InputMessage:
        content = list(message.content)
        for part_index, part in enumerate(content):
            if isinstance(part, TextPart):
                facts = InputFacts(
                    organization_id=run.organization_id,
                    subject_id=run.subject_id,
                    agent_id=run.agent_id,
                    conversation_id=run.conversation_id,
                    run_id=run.id,
                    message=index,
                    part=part_index,
                    role=cast("Any", message.role.value),
                    name=message.name,
                )
                content[part_index] = TextPart(await self._process_text(part.text, facts), part.signature)
        return replace(message, content=tuple(content))

    async def _process_text(self, text: str, facts: InputFacts) -> str:
        for named in self._inputs:
            processor: InputProcessor = named.processor
            try:
                text = await self._call(processor.process(text, facts))
                if not text:
                    raise _Unusable("returned an empty text")
            except Refused as refused:
                raise InputRefused(str(refused) or "The input was refused.", processor=named.name) from refused
            except Exception as error:
                _log.exception("input_processor_failed", processor=named.name, agent_id=facts.agent_id)
                raise ProcessorFailed(
                    f"The server's processor {named.name} failed; nothing of the input was stored.",
                    processor=named.name,
                ) from error
        return text

    async def process_result(self, result: ToolResult, facts: ToolResultFacts) -> ToolResult:
        """Returns the result of a tool as it is stored. A processor that fails is logged and changes nothing."""
        for named in self._results:
            processor: ToolResultProcessor = named.processor
            try:
                result = replace(result, text=await self._call(processor.process(result.text, facts)))
            except Exception:
                _log.exception(
                    "tool_result_processor_failed",
                    processor=named.name,
                    agent_id=facts.agent_id,
                    tool_name=facts.tool_name,
                )
        return result

    async def _call(self, coroutine: Coroutine[Any, Any, str]) -> str:
        """Returns the text of a processor within its time limit.

        A processor that ignores its cancellation is abandoned.
        """
        task = asyncio.ensure_future(coroutine)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._seconds)
        except BaseException:
            self._abandon(task)
            raise
        if not done:
            self._abandon(task)
            raise _Unusable(f"took longer than {self._seconds:g} seconds")
        if task.cancelled():
            raise _Unusable("was cancelled")
        text = task.result()
        if not isinstance(text, str) or len(text) > _MAX_TEXT_CHARACTERS or well_formed(text, MAX_TEXT_BYTES) != text:
            raise _Unusable("must return a text of at most 1 MB without NUL characters and lone surrogates")
        return text

    def _abandon(self, task: asyncio.Task[str]) -> None:
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[str]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


class _Unusable(Exception):
    """The processor returned nothing that can be used."""


def load(group: str, names: Sequence[str], setting: str) -> tuple[NamedProcessor, ...]:
    """Returns the named processors of a group by their order; those of equal order in the order of the setting.

    Raises:
        ConfigError: names the setting and the processor if it is not installed, is named twice, is provided by several
            packages, cannot be imported or created, has no awaitable `process`, or has no order below MEMORY_ORDER.
    """
    if not names:
        return ()
    installed: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=group):
        installed.setdefault(entry_point.name, []).append(entry_point)
    processors = []
    for name in names:
        subject = f"{setting} names {name!r}"
        if names.count(name) > 1:
            raise ConfigError(f"{subject} twice.")
        candidates = installed.get(name, [])
        if len({item.value for item in candidates}) > 1:
            raise ConfigError(
                f"{subject}, which several packages provide: {', '.join(item.value for item in candidates)}."
            )
        if not candidates:
            known = ", ".join(sorted(installed)) or "none"
            raise ConfigError(f"{subject}, which no installed package provides in {group} (known: {known}).")
        processors.append(NamedProcessor(name, _create(candidates[0], subject)))
    return tuple(sorted(processors, key=lambda named: named.processor.order))


def _create(entry_point: EntryPoint, subject: str) -> Any:
    try:
        processor = entry_point.load()()
    except Exception as error:
        raise ConfigError(f"{subject}, which cannot be created: {type(error).__name__}: {error}.") from error
    order = getattr(processor, "order", None)
    if isinstance(order, bool) or not isinstance(order, int):
        raise ConfigError(f"{subject}, which has no order: a whole number below {MEMORY_ORDER}.")
    if order >= MEMORY_ORDER:
        raise ConfigError(
            f"{subject}, whose order is {order}. It must be below {MEMORY_ORDER}, the order of memory: nothing may "
            "change a text after it is stored."
        )
    if not inspect.iscoroutinefunction(getattr(processor, "process", None)):
        raise ConfigError(f"{subject}, which has no awaitable process().")
    return processor
