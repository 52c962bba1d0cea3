"""The rules of the rehearsal: from a request to the next tool call or reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_types.messages import Role

from mnemesh_orchestrator.llm.history import THINKING
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.rehearsal.core_memory import EDITING_TOOLS, human_block, known_name, name_edit
from mnemesh_orchestrator.llm.rehearsal.found import found_in_archive, found_in_recall
from mnemesh_orchestrator.llm.rehearsal.sentences import AskKnown, AskName, AskSaid, Remember, SetName, Wish, wishes
from mnemesh_orchestrator.llm.rehearsal.turn import MadeCall, Turn, current_turn
from mnemesh_orchestrator.model.models import ToolSchema

DISCLAIMER: Final = (
    "[mnemesh/rehearsal: this is not a language model. Fixed rules answer, so that the memory can be seen at work.]"
)
HELP: Final = """\
I understand only these sentences, one or several at once:
- "My name is Ada." writes the name into core memory (the block "human").
- "What is my name?" answers from core memory.
- "Remember that the key is under the mat." stores it in archival memory.
- "What did I say about the key?" searches the conversation (recall memory).
- "What do you know about the key?" searches archival memory.
For real conversation, configure a model: set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL."""

SEND_MESSAGE: Final = "send_message"
HEARTBEAT: Final = "request_heartbeat"


@dataclass(frozen=True, slots=True)
class CallTool:
    """Calls a tool; `why` is the thought that goes with it."""

    tool: str
    arguments: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Say:
    """Replies with a text."""

    text: str


def decide(request: LlmRequest) -> CallTool | Say:
    """Returns the next action. It depends on the request alone, and every turn ends."""
    tools = {tool.name: tool for tool in request.tools}
    turn = current_turn(request.messages)
    wanted = wishes(turn.said)
    done = _assigned(wanted, turn)
    block = _block(request)
    choice = request.tool_choice
    forced = choice.name if choice.kind is ToolChoiceKind.NAMED else None
    for position, wish in enumerate(wanted):
        if position not in done and (call := _call_for(wish, block, tools)) is not None and forced in (None, call.tool):
            return _complete(call, tools[call.tool], turn, is_final=False)
    reply = _reply(wanted, done, turn, block)
    if forced is not None and forced != SEND_MESSAGE:
        return _for_form(forced, tools, turn)
    called = {made.tool for made in turn.made}
    owed = next((name for name in turn.demanded if name in tools and name not in called and name != SEND_MESSAGE), None)
    if owed is not None:
        return _for_form(owed, tools, turn)
    if choice.kind is ToolChoiceKind.AUTO or not tools:
        return Say(reply)
    if SEND_MESSAGE in tools:
        call = CallTool(SEND_MESSAGE, {"message": reply}, "Everything asked for is done; the user gets the reply.")
        return _complete(call, tools[SEND_MESSAGE], turn, is_final=True)
    uncalled = next((name for name in tools if name not in called), None)
    return Say(reply) if uncalled is None else _for_form(uncalled, tools, turn)


def _assigned(wanted: tuple[Wish, ...], turn: Turn) -> dict[int, MadeCall]:
    """Returns which call of this turn was made for which wish."""
    done: dict[int, MadeCall] = {}
    for made in turn.made:
        fitting = (place for place, wish in enumerate(wanted) if place not in done and _serves(made, wish))
        if (place := next(fitting, None)) is not None:
            done[place] = made
    return done


def _serves(made: MadeCall, wish: Wish) -> bool:
    match wish:
        case SetName(name):
            return made.tool in EDITING_TOOLS and any(
                name in value for value in made.arguments.values() if isinstance(value, str)
            )
        case Remember(what):
            return made.tool == "archival_memory_insert" and made.arguments.get("content") == what
        case AskSaid(topic):
            return made.tool == "conversation_search" and made.arguments.get("query") == topic
        case AskKnown(topic):
            return made.tool == "archival_memory_search" and made.arguments.get("query") == topic
        case AskName():
            return False


def _call_for(wish: Wish, block: str | None, tools: Mapping[str, ToolSchema]) -> CallTool | None:
    """Returns the call for a wish; None if it needs none, or the tool is not available."""
    match wish:
        case SetName(name) if block is not None and known_name(block) != name:
            edit = name_edit(name, block, tools)
            return None if edit is None else CallTool(edit.tool, edit.arguments, "The human told their name.")
        case Remember(what) if "archival_memory_insert" in tools:
            return CallTool("archival_memory_insert", {"content": what}, "The human asked to remember this.")
        case AskSaid(topic) if "conversation_search" in tools:
            properties = tools["conversation_search"].parameters.get("properties") or {}
            roles = {"roles": ["user"]} if "roles" in properties else {}
            return CallTool("conversation_search", {"query": topic, **roles}, "The human asks what they said.")
        case AskKnown(topic) if "archival_memory_search" in tools:
            return CallTool("archival_memory_search", {"query": topic}, "The human asks what is known.")
    return None


def _reply(wanted: tuple[Wish, ...], done: Mapping[int, MadeCall], turn: Turn, block: str | None) -> str:
    if any(made.tool == SEND_MESSAGE and not made.is_error for made in turn.made):
        return f"{DISCLAIMER}\nEverything is done."
    if not wanted:
        return f"{DISCLAIMER}\n{HELP}"
    name = known_name(block)
    lines = [DISCLAIMER]
    for place, wish in enumerate(wanted):
        made = done.get(place)
        if isinstance(wish, SetName) and made is not None and not made.is_error:
            name = wish.name
        lines.append(_line_without_call(wish, name, block) if made is None else _line(wish, made, turn))
    return "\n".join(lines)


def _line(wish: Wish, made: MadeCall, turn: Turn) -> str:
    if made.is_error:
        return f"{made.tool} failed: {made.text}"
    match wish:
        case SetName():
            return f"I wrote your name, {wish.name}, into core memory (block human, by {made.tool})."
        case Remember():
            return f"I stored this in archival memory: {wish.what}"
        case AskSaid():
            return found_in_recall(wish.topic, made.text or "", turn.said)
        case AskKnown():
            return found_in_archive(wish.topic, made.text or "")
        case AskName():
            return _NO_NAME


def _line_without_call(wish: Wish, name: str | None, block: str | None) -> str:
    match wish:
        case AskName():
            return f"Your name is {name} (from core memory, block human)." if name else _NO_NAME
        case SetName() if name == wish.name:
            return f"Core memory (block human) has your name already: {name}."
        case SetName():
            missing = "this agent has no block human" if block is None else "none of my tools can edit core memory"
            return f"I cannot write your name down: {missing}."
        case _:
            return _CANNOT[type(wish)]


_CANNOT: Final[Mapping[type[Wish], str]] = {
    Remember: "I cannot store that: the tool archival_memory_insert is not attached to this agent.",
    AskSaid: "I cannot search our conversation: the tool conversation_search is not attached to this agent.",
    AskKnown: "I cannot search archival memory: the tool archival_memory_search is not attached to this agent.",
}
_NO_NAME: Final = 'I do not know your name: core memory (block human) has none. Tell me with "My name is …".'


def _block(request: LlmRequest) -> str | None:
    system = next((message for message in request.messages if message.role is Role.SYSTEM), None)
    return None if system is None else human_block(system.text)


def _for_form(name: str, tools: Mapping[str, ToolSchema], turn: Turn) -> CallTool:
    """Returns a call that a rule requires, not the user."""
    call = CallTool(name, {}, "A rule wants this tool called.")
    return call if name not in tools else _complete(call, tools[name], turn, is_final=False)


def _complete(call: CallTool, tool: ToolSchema, turn: Turn, *, is_final: bool) -> CallTool:
    """Returns the call with everything that its schema requires: the thought first, the heartbeat last."""
    properties = tool.parameters.get("properties") or {}
    arguments: dict[str, Any] = {THINKING: f"Rehearsal rule: {call.why}"} if THINKING in properties else {}
    arguments.update(call.arguments)
    for name in tool.parameters.get("required") or ():
        if name not in arguments and name != HEARTBEAT:
            arguments[name] = _anything(properties.get(name) or {}, turn)
    if HEARTBEAT in properties:
        arguments[HEARTBEAT] = not is_final
    return CallTool(call.tool, arguments, call.why)


def _anything(schema: Mapping[str, Any], turn: Turn) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    by_type: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}, "null": None}
    return by_type.get(str(kind), turn.said[:200] or "rehearsal")
