"""The rules of the rehearsal: from a request to the next tool call or reply."""

from collections.abc import Mapping
from typing import Final

from mnemesh_types.messages import Role

from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.rehearsal.actions import DISCLAIMER, CallTool, Reply, complete, required_call
from mnemesh_orchestrator.llm.rehearsal.core_memory import EDITING_TOOLS, human_block, known_name, name_edit
from mnemesh_orchestrator.llm.rehearsal.group_talk import ASK_AGENT, ask_members, group_lines, reply_line
from mnemesh_orchestrator.llm.rehearsal.partner import partner_action
from mnemesh_orchestrator.llm.rehearsal.search_results import archive_results, recall_results
from mnemesh_orchestrator.llm.rehearsal.selection import selection_answer
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
from mnemesh_orchestrator.llm.rehearsal.turn import PastCall, Turn, current_turn
from mnemesh_orchestrator.model.models import ToolSchema

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
