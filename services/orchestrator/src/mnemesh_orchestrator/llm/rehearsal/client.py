"""The rehearsal model: from a request to the next tool call or reply, by fixed rules."""

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from mnemesh_types.messages import Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.openai_chat import render_body
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    AttemptBudget,
    FinishReason,
    LlmAnswer,
    LlmEvent,
    LlmRequest,
    TextDelta,
    ToolCallDelta,
    ToolChoiceKind,
)
from mnemesh_orchestrator.llm.rehearsal.core_memory import (
    EDITING_TOOLS,
    human_block,
    known_name,
    name_edit,
    partner_action,
)
from mnemesh_orchestrator.llm.rehearsal.sentences import (
    AskAgent,
    AskArchive,
    AskConversation,
    AskName,
    Intent,
    Remember,
    SetName,
    parse_intents,
)
from mnemesh_orchestrator.llm.rehearsal.turn import (
    DISCLAIMER,
    CallTool,
    PastCall,
    Reply,
    Turn,
    Words,
    complete,
    current_turn,
    required_call,
)
from mnemesh_orchestrator.llm.wire import RenderCache, encode_body
from mnemesh_orchestrator.model.models import ToolSchema

_QUESTION: Final = "You manage a conversation of several agents. Select the one that speaks next."
_MEMBER: Final = re.compile(
    r"^- id: (?P<id>agent-[0-9a-f-]+), name: (?P<name>.+?)(?:, description: .*)?$", re.MULTILINE
)
_SAID: Final = re.compile(r"^Said since your last selection:$", re.MULTILINE)
_TOKEN: Final = re.compile(r"^If the conversation is complete, answer (?P<token>.+)\Z", re.MULTILINE | re.DOTALL)
_REPEATED: Final = re.compile(
    r"^(?P<name>.+) spoke last, and no member speaks twice in a row\. Select again\.$", re.MULTILINE
)

_MAX_RESULTS: Final = 3
_MAX_LINE_CHARACTERS: Final = 300

ASK_AGENT: Final = "send_message_to_agent_and_wait_for_reply"
ASK_MEMBERS: Final = "send_message_to_all_agents_in_group"
_MAX_CHARACTERS: Final = 160

HELP: Final = """\
I understand only these sentences, one or several at once:
- "My name is Ada." writes the name into core memory (the block "human").
- "What is my name?" answers from core memory.
- "Remember that the key is under the mat." stores it in archival memory.
- "What did I say about the key?" searches the conversation (recall memory).
- "What do you know about the key?" and "Where is the key?" search archival memory.
- "Ask agent-…: What is my name?" asks another agent, with the tool for it.
For real conversation, configure a model: set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL."""

SEND_MESSAGE: Final = "send_message"

REHEARSAL_HANDLE: Final = "mnemesh/rehearsal"
_PIECE: Final = 24
_CHARACTERS_PER_TOKEN: Final = 4


def selection_answer(text: str) -> str | None:
    """Returns the answer to the question who speaks next; None if the text asks no such question."""
    start = text.rfind(_QUESTION)
    if start < 0 or (token := _TOKEN.search(text, start)) is None:
        return None
    said = _SAID.search(text, start)
    members = [
        (match["id"], match["name"]) for match in _MEMBER.finditer(text, start, said.start() if said else len(text))
    ]
    names = [name for _, name in members]
    repeated = _REPEATED.search(text, 0, start)
    last = repeated["name"] if repeated else _last_speaker(text[said.end() :], names) if said else None
    position = names.index(last) + 1 if last in names else 0
    if position >= len(members):
        return token["token"].strip()
    agent_id, name = members[position]
    return name if sum(other.casefold() == name.casefold() for other in names) == 1 else agent_id


def _last_speaker(said: str, names: list[str]) -> str | None:
    speakers = (name for line in reversed(said.splitlines()) for name in names if line.startswith(f"{name}: "))
    return next(speakers, None)


def recall_results(topic: str, returned: str, question: str) -> str:
    """Returns the lines of the conversation about a topic, without the question and the rehearsal's own replies."""
    rows = _rows(returned)
    if rows is None:
        return f"The search of our conversation for {topic} returned: {_short(returned)}"
    matches = [row for row in rows if not _is_echo(_content(row), question)]
    if not matches:
        return f"I find nothing that you said about {topic} in our conversation."
    lines = [f"- {_prefix(row)}{_short(_content(row))}" for row in matches[:_MAX_RESULTS]]
    return "\n".join((f"In our conversation (recall memory) I find about {topic}:", *lines))


def archive_results(topic: str, returned: str) -> str:
    """Returns the lines of archival memory about a topic."""
    rows = _rows(returned)
    if rows is None:
        return f"The search of archival memory for {topic} returned: {_short(returned)}"
    if not rows:
        return f"Archival memory holds nothing about {topic}."
    lines = [f"- {_prefix(row)}{_short(_content(row))}" for row in rows[:_MAX_RESULTS]]
    return "\n".join((f"In archival memory I find about {topic}:", *lines))


def _rows(returned: str) -> list[Mapping[str, Any]] | None:
    """Returns the results, plain or under "results", as JSON or as a Python list; None if they cannot be read."""
    decoded: object = None
    try:
        decoded = json.loads(returned)
    except (ValueError, RecursionError):
        try:
            decoded = ast.literal_eval(returned)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [] if returned.strip().lower().startswith(("no results", "none")) else None
    if isinstance(decoded, Mapping):
        decoded = decoded.get("results")
    return [row for row in decoded if isinstance(row, Mapping)] if isinstance(decoded, list | tuple) else None


def _content(row: Mapping[str, Any]) -> str:
    text = next((str(row[key]) for key in ("content", "text", "message") if row.get(key)), "")
    if text.startswith("{"):
        try:
            text = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError, RecursionError):
            return text
    return text


def _is_echo(content: str, question: str) -> bool:
    if not content or content.strip() == question.strip() or content.startswith("[mnemesh/rehearsal"):
        return True
    intents = parse_intents(content)
    return bool(intents) and all(isinstance(intent, AskConversation | AskArchive) for intent in intents)


def _prefix(row: Mapping[str, Any]) -> str:
    moment = str(row.get("timestamp") or "")[:10]
    speaker = str(row.get("role") or "")
    return "".join(f"{part}, " for part in (moment, speaker) if part)[:-2] + ": " if moment or speaker else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"


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
        yield f"- {_reply_of_member(reply)}"


def reply_line(returned: str) -> str:
    """Returns the reply of an agent that was asked, from the result of the tool."""
    replies = _decoded(f"[{returned}]")
    return f"The agent replied: {short_words(returned)}" if not replies else _reply_of_member(replies[0])


def _reply_of_member(reply: Mapping[str, Any]) -> str:
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


def decide(request: LlmRequest) -> CallTool | Reply:
    """Returns the next action. It depends on the request alone, and every turn ends."""
    tools = {tool.name: tool for tool in request.tools}
    turn = current_turn(request.messages)
    selection = selection_answer(turn.text)
    intents = parse_intents(turn.text) if selection is None else ()
    calls_by_intent = _match_calls(intents, turn)
    block = _block(request)
    choice = request.tool_choice
    forced = choice.name if choice.kind is ToolChoiceKind.NAMED else None
    action = partner_action(turn, block, tools) or ask_members(turn, tools)
    if isinstance(action, CallTool) and forced in (None, action.tool):
        return action
    if isinstance(action, Reply) and choice.kind is ToolChoiceKind.AUTO:
        return action
    for index, intent in enumerate(intents):
        if (
            index not in calls_by_intent
            and (call := _call_for(intent, block, tools)) is not None
            and forced in (None, call.tool)
        ):
            return complete(call, tools[call.tool], turn, is_final=False)
    reply = selection or _reply(intents, calls_by_intent, turn, block)
    if forced is not None and forced != SEND_MESSAGE:
        return required_call(forced, tools, turn)
    called = {past_call.tool for past_call in turn.calls}
    missing = next(
        (name for name in turn.required_tools if name in tools and name not in called and name != SEND_MESSAGE), None
    )
    if missing is not None:
        return required_call(missing, tools, turn)
    if choice.kind is ToolChoiceKind.AUTO or not tools:
        return Reply(reply)
    if SEND_MESSAGE in tools:
        call = CallTool(SEND_MESSAGE, {"message": reply}, "Everything asked for is done; the user gets the reply.")
        return complete(call, tools[SEND_MESSAGE], turn, is_final=True)
    uncalled = next((name for name in tools if name not in called), None)
    return Reply(reply) if uncalled is None else required_call(uncalled, tools, turn)


def _match_calls(intents: tuple[Intent, ...], turn: Turn) -> dict[int, PastCall]:
    """Returns which call of this turn was made for which wish."""
    calls_by_intent: dict[int, PastCall] = {}
    for past_call in turn.calls:
        candidates = (
            index for index, intent in enumerate(intents) if index not in calls_by_intent and _serves(past_call, intent)
        )
        if (index := next(candidates, None)) is not None:
            calls_by_intent[index] = past_call
    return calls_by_intent


def _serves(past_call: PastCall, intent: Intent) -> bool:
    match intent:
        case SetName(name):
            return past_call.tool in EDITING_TOOLS and any(
                name in value for value in past_call.arguments.values() if isinstance(value, str)
            )
        case Remember(text):
            return past_call.tool == "archival_memory_insert" and past_call.arguments.get("content") == text
        case AskConversation(topic):
            return past_call.tool == "conversation_search" and past_call.arguments.get("query") == topic
        case AskArchive(topic):
            return past_call.tool == "archival_memory_search" and past_call.arguments.get("query") == topic
        case AskAgent(agent_id):
            return past_call.tool == ASK_AGENT and past_call.arguments.get("other_agent_id") == agent_id
        case AskName():
            return False


def _call_for(intent: Intent, block: str | None, tools: Mapping[str, ToolSchema]) -> CallTool | None:
    """Returns the call for a wish; None if it needs none, or the tool is not available."""
    match intent:
        case SetName(name) if block is not None and known_name(block) != name:
            edit = name_edit(name, block, tools)
            return None if edit is None else CallTool(edit.tool, edit.arguments, "The human told their name.")
        case Remember(text) if "archival_memory_insert" in tools:
            return CallTool("archival_memory_insert", {"content": text}, "The human asked to remember this.")
        case AskConversation(topic) if "conversation_search" in tools:
            properties = tools["conversation_search"].parameters.get("properties") or {}
            roles = {"roles": ["user"]} if "roles" in properties else {}
            return CallTool("conversation_search", {"query": topic, **roles}, "The human asks what they said.")
        case AskAgent(agent_id, text) if ASK_AGENT in tools:
            return CallTool(ASK_AGENT, {"message": text, "other_agent_id": agent_id}, "The human wants an agent asked.")
        case AskArchive(topic) if "archival_memory_search" in tools:
            return CallTool("archival_memory_search", {"query": topic}, "The human asks what is known.")
    return None


def _reply(intents: tuple[Intent, ...], calls_by_intent: Mapping[int, PastCall], turn: Turn, block: str | None) -> str:
    if any(past_call.tool == SEND_MESSAGE and not past_call.is_error for past_call in turn.calls):
        return f"{DISCLAIMER}\nEverything is done."
    others = group_lines(turn)
    if not intents and not others:
        return f"{DISCLAIMER}\n{HELP}"
    name = known_name(block)
    lines = [DISCLAIMER]
    for index, intent in enumerate(intents):
        past_call = calls_by_intent.get(index)
        if isinstance(intent, SetName) and past_call is not None and not past_call.is_error:
            name = intent.name
        lines.append(
            _line_without_call(intent, name, block) if past_call is None else _result_line(intent, past_call, turn)
        )
    return "\n".join([*lines, *others])


def _result_line(intent: Intent, past_call: PastCall, turn: Turn) -> str:
    if past_call.is_error:
        return f"{past_call.tool} failed: {past_call.text}"
    match intent:
        case SetName():
            return f"I wrote your name, {intent.name}, into core memory (block human, by {past_call.tool})."
        case Remember():
            return f"I stored this in archival memory: {intent.text}"
        case AskConversation():
            return recall_results(intent.topic, past_call.text or "", turn.text)
        case AskArchive():
            return archive_results(intent.topic, past_call.text or "")
        case AskAgent():
            return reply_line(past_call.text or "")
        case AskName():
            return _NO_NAME


def _line_without_call(intent: Intent, name: str | None, block: str | None) -> str:
    match intent:
        case AskName():
            return f"Your name is {name} (from core memory, block human)." if name else _NO_NAME
        case SetName() if name == intent.name:
            return f"Core memory (block human) has your name already: {name}."
        case SetName():
            missing = "this agent has no block human" if block is None else "none of my tools can edit core memory"
            return f"I cannot write your name down: {missing}."
        case _:
            return _UNAVAILABLE_TEXTS[type(intent)]


_UNAVAILABLE_TEXTS: Final[Mapping[type[Intent], str]] = {
    Remember: "I cannot store that: the tool archival_memory_insert is not attached to this agent.",
    AskConversation: "I cannot search our conversation: the tool conversation_search is not attached to this agent.",
    AskAgent: f"I cannot ask another agent: the tool {ASK_AGENT} is not attached to this agent.",
    AskArchive: "I cannot search archival memory: the tool archival_memory_search is not attached to this agent.",
}
_NO_NAME: Final = 'I do not know your name: core memory (block human) has none. Tell me with "My name is …".'


def _block(request: LlmRequest) -> str | None:
    system = next((message for message in request.messages if message.role is Role.SYSTEM), None)
    return None if system is None else human_block(system.text)


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
