"""The rehearsal in a group: it answers the other agents, and asks the members as a supervisor."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mnemesh_orchestrator.llm.rehearsal.actions import DISCLAIMER, CallTool, complete
from mnemesh_orchestrator.llm.rehearsal.turn import PastCall, Turn, Words
from mnemesh_orchestrator.model.models import ToolSchema

ASK_AGENT: Final = "send_message_to_agent_and_wait_for_reply"
ASK_MEMBERS: Final = "send_message_to_all_agents_in_group"
_MAX_CHARACTERS: Final = 160


def ask_members(turn: Turn, tools: Mapping[str, ToolSchema]) -> CallTool | None:
    """Returns the call that asks all members of the group; None if this turn has it, or the agent is no supervisor."""
    if ASK_MEMBERS not in tools or any(call.tool == ASK_MEMBERS for call in turn.calls):
        return None
    call = CallTool(ASK_MEMBERS, {"message": turn.text}, "A supervisor asks the members first.")
    return complete(call, tools[ASK_MEMBERS], turn, is_final=False)


def group_lines(turn: Turn) -> list[str]:
    """Returns the lines of a reply about the other agents: their words to all, and their replies to a supervisor."""
    asked = next((call for call in turn.calls if call.tool == ASK_MEMBERS), None)
    return [*_answer_to(turn.words), *(() if asked is None else _replies(asked))]


def _answer_to(words: tuple[Words, ...]) -> list[str]:
    if not words:
        return []
    count = "1 message" if len(words) == 1 else f"{len(words)} messages"
    speakers = ", ".join(dict.fromkeys(each.speaker for each in words))
    lines = [f"Hello, {words[-1].speaker}! I have read {count} from {speakers}."]
    return lines + [
        f"{each.speaker} {'asked' if each.is_direct else 'said'}: {short_words(each.text)}" for each in words
    ]


def _replies(asked: PastCall) -> Iterator[str]:
    if asked.is_error:
        yield f"{ASK_MEMBERS} failed: {asked.text}"
        return
    replies = _decoded(asked.text or "")
    if replies is None:
        yield f"The members replied: {short_words(asked.text or '')}"
        return
    yield f"I asked {len(replies)} {'member' if len(replies) == 1 else 'members'}:"
    for reply in replies:
        yield f"- {_reply(reply)}"


def reply_line(returned: str) -> str:
    """Returns the reply of an agent that was asked, from the result of the tool."""
    replies = _decoded(f"[{returned}]")
    return f"The agent replied: {short_words(returned)}" if not replies else _reply(replies[0])


def _reply(reply: Mapping[str, Any]) -> str:
    speaker = reply.get("agent_name") or reply.get("agent_id") or "an agent"
    if reply.get("error"):
        return f"{speaker} failed: {reply['error']}"
    return f"{speaker}: {short_words(' '.join(map(str, reply.get('response') or ()))) or '(nothing)'}"


def _decoded(text: str) -> list[Mapping[str, Any]] | None:
    """Returns the replies in the result of the tool; None if it has another form."""
    try:
        decoded = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if not isinstance(decoded, list) or not all(isinstance(reply, Mapping) for reply in decoded):
        return None
    return decoded


def short_words(text: str) -> str:
    """Returns the beginning of what an agent said, in one line and without the disclaimer."""
    line = " ".join(text.replace(DISCLAIMER, "").split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"
