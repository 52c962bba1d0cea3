"""The answer of a model to a request for memories, asked for again with the problem if it cannot be used."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.completion import OnCall, complete_text
from mnemesh_orchestrator.compaction.port import SummaryFailed
from mnemesh_orchestrator.compaction.transcript import without_middle
from mnemesh_orchestrator.llm.attempts import AttemptBudget
from mnemesh_orchestrator.llm.errors import ContextOverflow
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest

_log = structlog.get_logger("mnemesh.compaction")

_MAX_ATTEMPTS: Final = 3
_RETRY_INSTRUCTION: Final = (
    "That answer cannot be used: {problem}\n"
    "Answer again with the whole JSON object, and nothing else. Labels are those of the material: m1, f1."
)


async def usable_answer(
    on_call: OnCall,
    client: LlmClient,
    request: LlmRequest,
    seconds: float,
    problem_of: Callable[[str], str | None],
    quoted_characters: int,
) -> str:
    """Returns the answer of a model, or the last one if none of three can be used.

    An unusable answer is returned to the model with its problem, in at most `quoted_characters`: a very long answer
    would not fit with the material, and neither would two answers.

    Args:
        on_call: receives every call of the model.
        client: calls the model.
        request: the request.
        seconds: the time limit of a call.
        problem_of: returns why an answer cannot be used, or None.
        quoted_characters: the length of the part of an unusable answer that the model sees.

    Raises:
        ContextOverflow, SummaryFailed: the first call failed; see complete_text.
    """
    first_messages, budget = request.messages, AttemptBudget()
    answer = await complete_text(on_call, client, request, seconds, budget)
    for _ in range(_MAX_ATTEMPTS - 1):
        problem = problem_of(answer)
        if problem is None:
            break
        _log.warning("memory_extraction_unusable", model=request.model.handle, problem=problem)
        retry = (
            _message(Role.ASSISTANT, without_middle(answer, quoted_characters), first_messages[-1]),
            _message(Role.USER, _RETRY_INSTRUCTION.format(problem=problem), first_messages[-1]),
        )
        request = replace(request, messages=(*first_messages, *retry))
        try:
            answer = await complete_text(on_call, client, request, seconds, budget)
        except (SummaryFailed, ContextOverflow):
            break
    return answer


def _message(role: Role, text: str, newest: Message) -> Message:
    id_ = derive_id("message", newest.id, "summarise", role.value, text)
    return Message(id=id_, role=role, created_at=newest.created_at, content=(TextPart(text),))
