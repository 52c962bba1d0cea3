"""`mnemesh/rehearsal`: fixed rules instead of a language model, so that the whole mesh can be tried offline.

It greets, writes a name into core memory, stores facts in archival memory, searches messages and passages, asks other
agents, and as a sleep-time partner writes down what the user said of themselves. An answer depends on the request
alone, and every turn ends.
"""

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mnemesh_types.messages import Message, Role, TextPart, ToolReturn, ToolStatus
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.history import THINKING, arguments_object
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
from mnemesh_orchestrator.llm.wire import RenderCache, encode_body
from mnemesh_orchestrator.model.models import ToolSchema

REHEARSAL_HANDLE: Final = "mnemesh/rehearsal"
DISCLAIMER: Final = (
    "[mnemesh/rehearsal: this is not a language model. Fixed rules answer, so that the memory can be seen at work.]"
)
HELP: Final = """\
I understand only these sentences, one or several at once:
- "My name is Ada." writes the name into core memory (the block "human").
- "What is my name?" answers from core memory.
- "Remember that the key is under the mat." stores it in archival memory.
- "What did I say about the key?" searches the conversation (recall memory).
- "What do you know about the key?" and "Where is the key?" search archival memory.
- "Ask agent-…: What is my name?" asks another agent, with the tool for it.
For real conversation, configure a model: set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL."""

_SEND_MESSAGE: Final = "send_message"
_HEARTBEAT: Final = "request_heartbeat"
_REWRITES: Final = ("memory_rethink", "rethink_user_memory")
_ENDS: Final = ("memory_finish_edits", "finish_rethinking_memory")
_MAX_REWRITES: Final = 5
_MAX_NAME_CHARACTERS: Final = 80
_MAX_LINE_CHARACTERS: Final = 300
_MAX_RESULTS: Final = 3
_READ_CHARACTERS: Final = 4_000
_PIECE: Final = 24
_CHARACTERS_PER_TOKEN: Final = 4


class Kind(Enum):
    """What a sentence wants."""

    SET_NAME = "set_name"
    ASK_NAME = "ask_name"
    REMEMBER = "remember"
    ASK_ARCHIVE = "ask_archive"
    ASK_CONVERSATION = "ask_conversation"
    ASK_AGENT = "ask_agent"


_TOOLS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.SET_NAME: ("memory_replace", "core_memory_replace", "memory", "core_memory_append", "memory_insert"),
    Kind.ASK_NAME: (),
    Kind.REMEMBER: ("archival_memory_insert",),
    Kind.ASK_ARCHIVE: ("archival_memory_search",),
    Kind.ASK_CONVERSATION: ("conversation_search",),
    Kind.ASK_AGENT: ("send_message_to_agent_and_wait_for_reply",),
}
"""The tools that do what a sentence wants, the best first."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a sentence wants. `text` is the name, the fact, the topic or the message."""

    kind: Kind
    text: str = ""
    agent_id: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. A past one has its result as `returned`."""

    tool: str
    arguments: Mapping[str, Any]
    returned: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user wrote, or an agent asks; what others said in the group; the calls so far; what rules require."""

    text: str
    heard: tuple[tuple[str, str], ...]
    """Pairs of speaker and text."""
    calls: tuple[Call, ...]
    required_tools: tuple[str, ...]


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
        text = decision if isinstance(decision, str) else ""
        calls: tuple[AnsweredCall, ...] = ()
        if isinstance(decision, Call):
            arguments = json.dumps(decision.arguments, ensure_ascii=False)
            calls = (AnsweredCall(decision.tool, arguments, "call_rehearsal"),)
        output = text or calls[0].arguments
        for start in range(0, len(output), _PIECE):
            piece = output[start : start + _PIECE]
            yield TextDelta(piece) if text else ToolCallDelta(0, calls[0].name, piece)
            await asyncio.sleep(0)  # Other tasks may run, as they do between the tokens of a real stream.
        prompt, completion = (-(-len(each) // _CHARACTERS_PER_TOKEN) for each in (body, output))
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


def decide(request: LlmRequest) -> Call | str:
    """Returns the next call of a tool, or the reply that ends the turn."""
    tools = {tool.name: tool for tool in request.tools}
    turn, block = current_turn(request.messages), human_block(request.messages)
    wishes = [] if (notes := transcript(turn.text)) else list(wishes_in(turn.text))
    choice, called = request.tool_choice, {call.tool for call in turn.calls}
    forced = choice.name if choice.kind is ToolChoiceKind.NAMED else None

    def completed(call: Call, *, is_final: bool = False) -> Call:
        return _complete(call, tools.get(call.tool), turn, block or "", is_final=is_final)

    wanted = _note(notes, turn, block, tools) if notes else _next_call(wishes, turn, block, tools)
    if wanted is not None and forced in (None, wanted.tool):
        return completed(wanted, is_final=wanted.tool in _ENDS)
    if forced is not None and forced != _SEND_MESSAGE:
        return completed(Call(forced, {}))
    required = (name for name in turn.required_tools if name in tools and name not in called | {_SEND_MESSAGE})
    if (missing := next(required, None)) is not None:
        return completed(Call(missing, {}))
    reply = "\n".join((DISCLAIMER, *_lines(wishes, turn, block)))
    if choice.kind is ToolChoiceKind.AUTO or not tools:
        return reply
    if _SEND_MESSAGE in tools:
        return completed(Call(_SEND_MESSAGE, {"message": reply}), is_final=True)
    uncalled = next((name for name in tools if name not in called), None)
    return reply if uncalled is None else completed(Call(uncalled, {}))


def _complete(call: Call, tool: ToolSchema | None, turn: Turn, block: str, *, is_final: bool) -> Call:
    """Returns the call with all that its schema requires: the thought first, the heartbeat last."""
    parameters = {} if tool is None else tool.parameters
    properties = parameters.get("properties") or {}
    arguments: dict[str, Any] = (
        {THINKING: f"A rule of the rehearsal calls {call.tool}."} if THINKING in properties else {}
    )
    arguments |= call.arguments
    for name in parameters.get("required") or ():
        if name == "new_memory":
            arguments.setdefault(name, with_notes(block, transcript(turn.text)))
        elif name != _HEARTBEAT:
            arguments.setdefault(name, _default_value(properties.get(name) or {}, turn))
    if _HEARTBEAT in properties:
        arguments[_HEARTBEAT] = not is_final
    return Call(call.tool, arguments)


def _default_value(schema: Mapping[str, Any], turn: Turn) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    by_type: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}, "null": None}
    return by_type.get(str(kind), turn.text[:200] or "rehearsal")


# The turn.

_REQUIREMENTS: Final = (
    re.compile(r"must call ([\w\s,'\"`]+?) at least once"),
    re.compile(r"expects these tools: \[([^\]]*)\] to be called"),
)
_AGENT_MESSAGE: Final = re.compile(
    r"\[This message comes from the agent (?P<speaker>[^\n]+) \(id [^)\n]+\), not from the user\.[^\]]*\]\s*"
    r"(?P<text>.*)",
    re.DOTALL,
)


def current_turn(messages: tuple[Message, ...]) -> Turn:
    """Returns the turn that the last input started. Consecutive input messages count as one."""
    inputs = [
        index
        for index, message in enumerate(messages)
        if message.is_from_user or (index > 0 and message.role is Role.SYSTEM)
    ]
    first = last = inputs[-1] if inputs else 0
    while first - 1 in inputs:
        first -= 1
    texts, heard = [], []
    for message in messages[first : last + 1]:
        if message.is_from_user:
            texts.append(message.text)
        elif match := _AGENT_MESSAGE.match(message.text):
            texts.append(match["text"])
            heard.append((match["speaker"], match["text"]))
        elif message.name and message.text.startswith(f"{message.name}: "):
            heard.append((message.name, message.text.removeprefix(f"{message.name}: ")))
    own = messages[last:]
    returns = {returned.tool_call_id: returned for message in own for returned in message.tool_returns}
    calls = (
        _past_call(call.name, call.arguments, returns.get(call.id))
        for message in own
        if message.role is not Role.APPROVAL  # It repeats calls.
        for call in message.tool_calls
    )
    rules = (match[1] for each in own if each.is_event for rule in _REQUIREMENTS for match in rule.finditer(each.text))
    required = dict.fromkeys(name for names in rules for name in re.findall(r"\w+", names))
    return Turn("\n".join(texts), tuple(heard), tuple(calls), tuple(required))


def _past_call(name: str, arguments: str, returned: ToolReturn | None) -> Call:
    if returned is None:
        return Call(name, arguments_object(arguments))
    return Call(name, arguments_object(arguments), returned.text, returned.status is ToolStatus.ERROR)


# Sentences.

_SENTENCE: Final = re.compile(r"[^\n]+?(?:(?<!\b[A-Z])[.!?;…]+(?=\s|$)|[。！？]|$)", re.MULTILINE)
_GREETING: Final = r"^\W*(?:(?:hi|hello|hey|please|and|also|then)\b\W*)*"
_SAID: Final = (
    r"\bwhat did (?:i|we) (?:\w+ )?(?:say|tell|mention|talk|discuss|write)(?: to)?(?: you)?(?: about| of| on)? "
)
_PLACE: Final = r"(?:when|where)(?:'s| is| are| was| were| does| do| did) (?!you\b)"
_AFTER_NAME: Final = r"(?:\s*[,;:!?。！？…].*|\s+(?:and|but|so|now)\b.*|(?<!\b[A-Z])\.)?$"
_PATTERNS: Final = (
    (Kind.ASK_AGENT, _GREETING + r"ask\s+(?P<agent>agent-[0-9a-f-]{36})\s*[,:]?\s*(?P<text>.+)$"),
    (Kind.REMEMBER, _GREETING + r"(?:remember|don't forget)\b\s*(?:that|this)?\s*:?\s*(?P<text>[^?]+)$"),
    (Kind.ASK_CONVERSATION, _SAID + r"(?P<text>.+)$"),
    (Kind.ASK_ARCHIVE, r"\bwhat do you (?:know|remember) (?:about|of) (?P<text>.+)$"),
    (Kind.ASK_ARCHIVE, _GREETING + _PLACE + r"(?P<text>[^?]+)\?"),
    (Kind.ASK_NAME, r"\bwhat(?:'s| is) my name\b|\bwho am i\b"),
    (Kind.SET_NAME, r"\b(?:my name(?:'s| is)|call me)\s+(?!(?:not|unknown)\b)(?P<text>.+?)" + _AFTER_NAME),
)


def wishes_in(text: str) -> Iterator[Wish]:
    """Yields the wishes in a text, sentence by sentence. Other sentences are left out."""
    return filter(None, map(_wish, _sentences(text)))


def _sentences(text: str) -> Iterator[str]:
    return (match[0].strip() for match in _SENTENCE.finditer(text[:_READ_CHARACTERS].replace("’", "'")))


def _wish(sentence: str) -> Wish | None:
    for kind, pattern in _PATTERNS:
        if match := re.search(pattern, sentence, re.IGNORECASE):
            groups = match.groupdict()
            marks = ";" if kind in (Kind.REMEMBER, Kind.ASK_AGENT) else ".?!;。？！… "
            text = (groups.get("text") or "").strip().rstrip(marks)
            if kind is Kind.SET_NAME:
                text = text.strip("\"'“”")[:_MAX_NAME_CHARACTERS]
            is_complete = kind is Kind.ASK_NAME or any(character.isalnum() for character in text)
            return Wish(kind, text, groups.get("agent") or "") if is_complete else None
    return None


# Core memory.

_BLOCK: Final = re.compile(
    r"<memory_blocks>.*<human>.*?<value>\n?(.*?)\n?</value>\s*</human>.*</memory_blocks>", re.DOTALL
)
_NAME: Final = re.compile(r"^(?P<head>.*?\bname\s*(?::|\bis\b))[ \t]*(?P<name>.*?)(?P<tail>\.?)$", re.I | re.M)
_UNKNOWN: Final = re.compile(r"$|\?+$|unknown\b|none\b|not\b", re.IGNORECASE)
_LINE: Final = re.compile(
    r"^\W*(?:(?:Older|Newer)\W+)?(?:\d+\W+)?(?:(?:Older|Newer)\W+)?"
    r"(?P<role>user|assistant|tool|system|approval): ?(?P<text>.*)$"
)


def human_block(messages: tuple[Message, ...]) -> str | None:
    """Returns the value of the block "human", None if the agent has none."""
    system = next((message.text for message in messages if message.role is Role.SYSTEM), "")
    match = _BLOCK.search(system)
    return match[1] if match else None


def _known_name(block: str | None) -> str | None:
    match = _NAME.search(block or "")
    return None if match is None or _UNKNOWN.match(match["name"]) else match["name"]


def _set_name(name: str, block: str, tools: Mapping[str, ToolSchema]) -> Call | None:
    """Returns the call that changes the line of the name, or adds one; None if no offered tool can do it."""
    here, path = {"label": "human"}, {"path": "/memories/human"}
    calls: list[Call] = []
    if match := _NAME.search(block):
        old, new = match[0], f"{match['head']} {name}{match['tail']}"
        calls = [
            Call("memory_replace", {**here, "old_str": old, "new_str": new}),
            Call("core_memory_replace", {**here, "old_content": old, "new_content": new}),
            Call("memory", {"command": "str_replace", **path, "old_str": old, "new_str": new}),
        ]
    line = f"Name: {name}"
    calls += [
        Call("core_memory_append", {**here, "content": line}),
        Call("memory_insert", {**here, "new_str": line, "insert_line": -1}),
        Call("memory", {"command": "insert", **path, "insert_text": line, "insert_line": -1}),
    ]
    return next((call for call in calls if call.tool in tools), None)


def transcript(text: str) -> tuple[str, ...]:
    """Returns what the user says in the transcript that a sleep-time partner receives; () if it is not a transcript."""
    said: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            said.append((match["role"], [match["text"]]))
        elif said:
            said[-1][1].append(line)
    return tuple(_unpacked("\n".join(lines).strip()) for role, lines in said if role == "user")


def _unpacked(text: str) -> str:
    """Returns the text in the envelope of a user message, or the text as it is."""
    envelope = arguments_object(text) if text.startswith("{") else {}
    return str(envelope.get("message", text))


def with_notes(block: str, said: tuple[str, ...]) -> str:
    """Returns the block with the name of the user, and with what they said of themselves and asked to remember."""
    for sentence in (each for text in said for each in _sentences(text)):
        wish = _wish(sentence)
        if wish is not None and wish.kind is Kind.SET_NAME:
            if match := _NAME.search(block):
                block = block.replace(match[0], f"{match['head']} {wish.text}{match['tail']}", 1)
                continue
            line = f"Name: {wish.text}"
        elif wish is not None and wish.kind is Kind.REMEMBER:
            line = wish.text
        elif wish is None and re.match(r"I\b", sentence) and not sentence.endswith("?"):
            line = sentence
        else:
            continue
        if line.casefold() not in (each.strip().casefold() for each in block.split("\n")):
            block = f"{block}\n{line}" if block.strip() else line
    return block


def _note(said: tuple[str, ...], turn: Turn, block: str | None, tools: Mapping[str, ToolSchema]) -> Call | None:
    """Returns the next call of a sleep-time partner.

    A rewrite of the whole block is refused if another partner has changed it, and is then made again. So several
    partners write no fact twice.
    """
    end, rewrite = (next((name for name in names if name in tools), None) for names in (_ENDS, _REWRITES))
    if end is None or any(call.tool == end for call in turn.calls):
        return None
    rewrites = [call for call in turn.calls if call.tool == rewrite]
    is_done = len(rewrites) >= _MAX_REWRITES or any(not call.is_error for call in rewrites)
    if rewrite is None or block is None or is_done or (value := with_notes(block, said)) == block:
        return Call(end, {})
    return Call(rewrite, {**({"label": "human"} if rewrite == _REWRITES[0] else {}), "new_memory": value})


# Wishes: their calls, and the lines of the reply.


def _served(wish: Wish, turn: Turn) -> Call | None:
    """Returns the call of this turn that was made for a wish."""
    calls = (call for call in turn.calls if call.tool in _TOOLS[wish.kind])
    return next((call for call in calls if any(wish.text in str(value) for value in call.arguments.values())), None)


def _next_call(wishes: list[Wish], turn: Turn, block: str | None, tools: Mapping[str, ToolSchema]) -> Call | None:
    calls = (_call(wish, block, tools) for wish in wishes if _served(wish, turn) is None)
    return next(filter(None, calls), None)


def _call(wish: Wish, block: str | None, tools: Mapping[str, ToolSchema]) -> Call | None:
    """Returns the call for a wish; None if it needs none, or no tool for it is offered."""
    if wish.kind is Kind.SET_NAME:
        return None if block is None or _known_name(block) == wish.text else _set_name(wish.text, block, tools)
    tool = next((name for name in _TOOLS[wish.kind] if name in tools), None)
    if tool is None:
        return None
    match wish.kind:
        case Kind.REMEMBER:
            return Call(tool, {"content": wish.text})
        case Kind.ASK_AGENT:
            return Call(tool, {"message": wish.text, "other_agent_id": wish.agent_id})
        case Kind.ASK_CONVERSATION:
            return Call(tool, {"query": wish.text, "roles": ["user"]})
        case _:
            return Call(tool, {"query": wish.text})


def _lines(wishes: list[Wish], turn: Turn, block: str | None) -> Iterator[str]:
    """Yields the lines of the reply: what became of the wishes, what other tools returned, what others said."""
    served = [_served(wish, turn) for wish in wishes]
    yield from (_line(wish, call, block) for wish, call in zip(wishes, served, strict=True))
    others = [call for call in turn.calls if call not in served and call.tool != _SEND_MESSAGE]
    yield from (f"{call.tool} returned: {_replies(call.returned)}" for call in others)
    if turn.heard:
        speakers = ", ".join(dict.fromkeys(speaker for speaker, _ in turn.heard))
        count = f"{len(turn.heard)} message{'s' if len(turn.heard) > 1 else ''}"
        yield f"Hello, {turn.heard[-1][0]}! I have read {count} from {speakers}."
        yield from (f"{speaker} said: {_short(text)}" for speaker, text in turn.heard)
    if not wishes and not others and not turn.heard:
        yield HELP


def _line(wish: Wish, call: Call | None, block: str | None) -> str:
    name, topic = _known_name(block), wish.text
    if call is not None and call.is_error:
        return f"{call.tool} failed: {call.returned}"
    match wish.kind:
        case Kind.ASK_NAME if name:
            return f"Your name is {name} (from core memory, block human)."
        case Kind.ASK_NAME:
            return 'I do not know your name: core memory (block human) has none. Tell me with "My name is …".'
        case Kind.SET_NAME if call is not None:
            return f"I wrote your name, {topic}, into core memory (block human, by {call.tool})."
        case Kind.SET_NAME if name == topic:
            return f"Core memory (block human) has your name already: {name}."
        case Kind.SET_NAME:
            missing = "this agent has no block human" if block is None else "none of my tools can edit core memory"
            return f"I cannot write your name down: {missing}."
    if call is None:
        return f"I cannot do that: the tool {_TOOLS[wish.kind][0]} is not attached to this agent."
    match wish.kind:
        case Kind.REMEMBER:
            return f"I stored this in archival memory: {topic}"
        case Kind.ASK_CONVERSATION:
            return _found(call.returned, f"In our conversation (recall memory) I find about {topic}:")
        case Kind.ASK_ARCHIVE:
            return _found(call.returned, f"In archival memory I find about {topic}:")
    return _replies(call.returned)


def _found(returned: str, heading: str) -> str:
    """Returns the results of a search, one per line, without questions such as the one that was asked."""
    try:
        decoded: Any = json.loads(returned) if returned.startswith("{") else ast.literal_eval(returned)
    except (ValueError, SyntaxError, MemoryError, RecursionError, SystemError):
        return f"{heading} {_short(returned)}"
    rows = decoded.get("results", ()) if isinstance(decoded, Mapping) else decoded
    lines = []
    for row in rows:
        text = str(row.get("content") or row.get("message") or "")
        kinds = {wish.kind for wish in wishes_in(text)}
        if not kinds or kinds - {Kind.ASK_ARCHIVE, Kind.ASK_CONVERSATION}:
            about = ", ".join(filter(None, (str(row.get("timestamp") or "")[:10], row.get("role"))))
            lines.append(f"- {about}: {_short(text)}" if about else f"- {_short(text)}")
    return "\n".join((heading, *lines[:_MAX_RESULTS])) if lines else f"{heading} nothing."


def _replies(returned: str) -> str:
    """Returns what other agents replied, from the result of a tool that asked them; any other result as it is."""
    try:
        decoded = ast.literal_eval(returned)
        replies = decoded if isinstance(decoded, list) else [decoded]
        lines = [f"{each.get('agent_name')}: {_short(' '.join(each['response']))}" for each in replies]
    except Exception:  # the result of a tool may be anything
        return _short(returned)
    return "\n".join(lines)


def _short(text: str) -> str:
    """Returns the beginning of a text in one line and without the disclaimer."""
    line = " ".join(text.replace(DISCLAIMER, "").split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"
