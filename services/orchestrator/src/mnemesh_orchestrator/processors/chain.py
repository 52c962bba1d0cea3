"""Runs processors one after the other, each within a time limit."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import structlog
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import TextPart

from mnemesh_orchestrator.errors import InputRefused, ProcessorFailed
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.processors.port import (
    InputFacts,
    InputProcessor,
    Refused,
    ToolResultFacts,
    ToolResultProcessor,
)

_log = structlog.get_logger("mnemesh.processors")

_MAX_TEXT_CHARACTERS: Final = 1_000_000


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

    @property
    def has_input_processors(self) -> bool:
        """True if any processor handles inputs."""
        return bool(self._inputs)

    @property
    def has_result_processors(self) -> bool:
        """True if any processor handles tool results."""
        return bool(self._results)

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
