"""The schemas of the built-in tools, and the arguments that mnemesh adds to any tool."""

from collections.abc import Mapping
from typing import Any, Final

from mnemesh_orchestrator.builtin.code_schemas import CODE_TOOLS
from mnemesh_orchestrator.builtin.file_schemas import FILE_TOOLS
from mnemesh_orchestrator.builtin.schema_elements import number, objects, text, texts, tool
from mnemesh_orchestrator.builtin.search_schemas import SEARCH_TOOLS
from mnemesh_orchestrator.builtin.web_schemas import WEB_TOOLS
from mnemesh_orchestrator.model.models import ToolSchema

HEARTBEAT: Final = "request_heartbeat"
THINKING: Final = "thinking"

_LABEL: Final = ("label", "The label of the memory block to edit.")
_BY_LINE: Final = (
    "The line after which to insert the text: 0 for the beginning of the block, -1 (the default) for its end."
)
_NO_NUMBERS: Final = "Without the displayed line numbers."


def with_heartbeat(schema: ToolSchema) -> ToolSchema:
    """Returns the tool with a required argument that asks for another step. Not for tools that end a turn."""
    if HEARTBEAT in schema.parameters.get("properties", {}):
        return schema
    description = "True to get another step when this tool has returned; false to rest until the next event."
    added = {HEARTBEAT: {"type": "boolean", "description": description}}
    properties = {**schema.parameters.get("properties", {}), **added}
    required = [*schema.parameters.get("required", ()), HEARTBEAT]
    return _with_parameters(schema, properties, required)


def with_thinking(schema: ToolSchema) -> ToolSchema:
    """Returns the tool with a required first argument for the model's thoughts, unless it has one already."""
    if THINKING in schema.parameters.get("properties", {}):
        return schema
    description = "Your inner monologue, which only you read: what you know, what you want, and why you act."
    added = {THINKING: {"type": "string", "description": description}}
    properties = {**added, **schema.parameters.get("properties", {})}
    required = [THINKING, *schema.parameters.get("required", ())]
    return _with_parameters(schema, properties, required)


def _with_parameters(schema: ToolSchema, properties: Mapping[str, Any], required: list[str]) -> ToolSchema:
    parameters = {**schema.parameters, "type": "object", "properties": properties, "required": required}
    return ToolSchema(schema.name, schema.description, parameters)


def _label() -> dict[str, Any]:
    name, description = _LABEL
    return {name: text(description)}


_SPEECH_TOOLS: Final = (
    tool(
        "send_message",
        "Sends a message to the user. Nothing else that you do is visible to them.",
        {"message": text("The message for the user.")},
    ),
)

_EDIT_TOOLS: Final = (
    tool(
        "core_memory_append",
        "Adds a line at the end of a memory block.",
        {**_label(), "content": text(f"The text to add. {_NO_NUMBERS}")},
    ),
    tool(
        "core_memory_replace",
        "Replaces a piece of text in a memory block, wherever it occurs.",
        {
            **_label(),
            "old_content": text("The text to replace, exactly as it is in the block."),
            "new_content": text(f"The replacement; empty to delete the text. {_NO_NUMBERS}"),
        },
    ),
    tool(
        "memory_replace",
        "Replaces a piece of text in a memory block. The piece must occur exactly once: give enough of it to be clear.",
        {
            **_label(),
            "old_str": text(f"The text to replace, exactly as it is in the block. {_NO_NUMBERS}"),
            "new_str": text(f"The replacement; empty to delete the text. {_NO_NUMBERS}"),
        },
    ),
    tool(
        "memory_insert",
        "Inserts lines of text into a memory block.",
        {**_label(), "new_str": text(f"The text to insert. {_NO_NUMBERS}")},
        {"insert_line": number(_BY_LINE)},
    ),
    tool(
        "memory_rethink",
        "Replaces the whole value of a memory block, to reorganize or condense it. For small changes use the other "
        "tools.",
        {**_label(), "new_memory": text(f"The whole new text of the block. {_NO_NUMBERS}")},
    ),
    tool(
        "rethink_memory",
        "Replaces the whole value of a memory block with a new text that contains all current information from it, "
        "integrates what is new, and omits what is outdated or inconsistent.",
        {
            "new_memory": text(f"The whole new text of the block. {_NO_NUMBERS}"),
            "target_block_label": text("The label of the memory block to write to."),
        },
    ),
    tool("memory_finish_edits", "Signals that you have finished editing memory.", {}),
    tool(
        "memory_apply_patch",
        "Changes several places of a memory block by a patch. Hunks begin with @@; their lines begin with a space "
        "(unchanged), - (removed) or + (added). A hunk is found by its lines, so they must be exact and clear; one "
        "that only adds goes to the end.",
        {**_label(), "patch": text(f"The patch. {_NO_NUMBERS}")},
    ),
    tool(
        "memory",
        "Manages memory blocks by path, /memories/ followed by the label. Commands: create makes a block (path, "
        "description, and file_text for its text); str_replace replaces a text that occurs once (path, old_str, "
        "new_str); insert adds lines (path, insert_text, and insert_line); delete removes a block (path); rename "
        "gives a block another label (old_path, new_path) or another description (path, description).",
        {
            "command": {
                "type": "string",
                "enum": ["create", "str_replace", "insert", "delete", "rename"],
                "description": "What to do.",
            }
        },
        {
            "path": text("The block, as /memories/label. For every command except a rename to another label."),
            "file_text": text("For create: the text of the block."),
            "description": text("For create, and for rename with path: what the block is for."),
            "old_str": text(f"For str_replace: the text to replace. {_NO_NUMBERS}"),
            "new_str": text(f"For str_replace: the replacement. {_NO_NUMBERS}"),
            "insert_line": number(f"For insert. {_BY_LINE}"),
            "insert_text": text(f"For insert: the text. {_NO_NUMBERS}"),
            "old_path": text("For rename: the current path of the block."),
            "new_path": text("For rename: the new path of the block."),
        },
    ),
)

_VOICE_TOOLS: Final = (
    tool(
        "search_memory",
        "Searches what you know and what was said before. The last message of the user is searched for automatically. "
        "A search takes time, so search only for what you should know and do not see.",
        {},
        {
            "convo_keyword_queries": texts("Names, numbers or unusual words to look for in the conversation."),
            "start_minutes_ago": number("Nothing older than this many minutes.", minimum=0),
            "end_minutes_ago": number("Nothing newer than this many minutes.", minimum=0),
        },
    ),
    tool(
        "store_memories",
        "Stores the older part of the transcript that you were given, in chunks, so that each can be found again.",
        {
            "chunks": objects(
                "The chunks, in order; lines that belong together form one chunk.",
                {
                    "start_index": number("The index of its first line.", minimum=0),
                    "end_index": number("The index of its last line, which belongs to it.", minimum=0),
                    "context": text("A sentence that says why it may matter later."),
                },
            ),
        },
    ),
    tool(
        "rethink_user_memory",
        "Replaces the whole memory block about the user.",
        {"new_memory": text(f"The whole new text of the block. {_NO_NUMBERS}")},
    ),
    tool("finish_rethinking_memory", "Signals that you are satisfied with the memory about the user.", {}),
)

_OTHER_AGENT: Final = text("The id of the other agent, such as agent-123e4567-e89b-42d3-a456-426614174000.")

_AGENT_TOOLS: Final = (
    tool(
        "send_message_to_agent_and_wait_for_reply",
        "Sends a message to another agent and waits until it has answered. Returns its reply as JSON.",
        {
            "message": text("The message for the agent, with all that it needs to know."),
            "other_agent_id": _OTHER_AGENT,
        },
    ),
    tool(
        "send_message_to_agent_async",
        "Sends a message to another agent and does not wait. The agent works on it in the background; its reply is not "
        "returned.",
        {
            "message": text("The message for the agent, with all that it needs to know."),
            "other_agent_id": _OTHER_AGENT,
        },
    ),
    tool(
        "send_message_to_agents_matching_tags",
        "Sends the same message to all agents that have certain tags, and waits until they have answered. Returns a "
        "JSON list with the reply of each.",
        {
            "message": text("The message for the agents."),
            "match_all": texts("Tags that an agent must have, every one of them. May be empty."),
            "match_some": texts("Tags of which an agent must have at least one. May be empty."),
        },
    ),
    tool(
        "send_message_to_all_agents_in_group",
        "Sends the same message to all other agents of your group, and waits until they have answered. Returns a JSON "
        "list with the reply of each.",
        {"message": text("The message for the agents.")},
    ),
)

AGENT_MESSAGE_TOOLS: Final = frozenset(schema.name for schema in _AGENT_TOOLS)
"""The tools that start runs of other agents."""

BUILTIN_SCHEMAS: Final[Mapping[str, ToolSchema]] = {
    schema.name: schema
    for schema in (
        *_SPEECH_TOOLS,
        *SEARCH_TOOLS,
        *_EDIT_TOOLS,
        *_VOICE_TOOLS,
        *_AGENT_TOOLS,
        *WEB_TOOLS,
        *FILE_TOOLS,
        *CODE_TOOLS,
    )
}
"""Every built-in tool by its name, without the arguments that mnemesh adds."""
