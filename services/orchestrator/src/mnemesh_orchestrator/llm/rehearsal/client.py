"""The rehearsal as an LlmClient: decides by rules, and streams its answer like a model."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Final

from mnemesh_types.messages import TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.attempts import AttemptBudget
from mnemesh_orchestrator.llm.openai_chat.render import render_body
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    FinishReason,
    LlmAnswer,
    LlmEvent,
    LlmRequest,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_orchestrator.llm.rehearsal.actions import CallTool, Reply
from mnemesh_orchestrator.llm.rehearsal.decide import decide
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.wire import encode_body

REHEARSAL_HANDLE: Final = "mnemesh/rehearsal"
_PIECE: Final = 24
_CHARACTERS_PER_TOKEN: Final = 4


class RehearsalClient:
    """Runs in process without a network, and gives the same answer to the same request."""

    def __init__(self) -> None:
        self._cache = RenderCache()

    def render(self, request: LlmRequest) -> str:
        """Returns the request as the body of a chat completion."""
        return encode_body(render_body(request, self._cache)).decode()

    async def stream(
        self,
        request: LlmRequest,
        budget: AttemptBudget | None = None,  # noqa: ARG002 -- nothing fails here
    ) -> AsyncIterator[LlmEvent]:
        """Answers by the rules; see the port."""
        body = self.render(request)
        decision = decide(request)
        text = decision.text if isinstance(decision, Reply) else ""
        calls: tuple[AnsweredCall, ...] = ()
        if isinstance(decision, CallTool):
            arguments = json.dumps(decision.arguments, ensure_ascii=False)
            calls = (AnsweredCall(decision.tool, arguments, "call_rehearsal"),)
        output = text or calls[0].arguments
        for piece in _pieces(output):
            yield TextDelta(piece) if text else ToolCallDelta(0, calls[0].name, piece)
            await asyncio.sleep(0)  # Other tasks may run, as they do between the tokens of a real stream.
        prompt, completion = _tokens(body), _tokens(output)
        yield LlmAnswer(
            content=(TextPart(text),) if text else (),
            tool_calls=calls,
            finish_reason=FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
            usage=Usage(prompt, completion, prompt + completion),
            request_body=body,
            response_body=json.dumps({"text": text, "tool_calls": [call.name for call in calls], "said": output}),
        )

    async def close(self) -> None:
        """Does nothing: no connection is open."""


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
