"""The schemas of the built-in tools, and the arguments that mnemesh adds to any tool."""

from collections.abc import Mapping
from typing import Any, Final

from mnemesh_orchestrator.model.models import ToolSchema

HEARTBEAT: Final = "request_heartbeat"
THINKING: Final = "thinking"

_LABEL: Final = ("label", "The label of the memory block to edit.")
_BY_LINE: Final = (
    "The line after which to insert the text: 0 for the beginning of the block, -1 (the default) for its end."
)
_NO_NUMBERS: Final = "Without the displayed line numbers."
_DATE_FORMS: Final = "ISO 8601, as YYYY-MM-DD or YYYY-MM-DDTHH:MM, in your time zone unless an offset is given."


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


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, **bounds: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, **bounds}


def _texts(description: str, among: tuple[str, ...] = ()) -> dict[str, Any]:
    items: dict[str, Any] = {"type": "string", "enum": list(among)} if among else {"type": "string"}
    return {"type": "array", "items": items, "description": description}


def _objects(description: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    items = {"type": "object", "properties": dict(fields), "required": list(fields)}
    return {"type": "array", "items": items, "description": description}


def _tool(
    name: str, description: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> ToolSchema:
    parameters = {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}
    return ToolSchema(name, description, parameters)


def _label() -> dict[str, Any]:
    name, description = _LABEL
    return {name: _text(description)}


_SPEECH_TOOLS: Final = (
    _tool(
        "send_message",
        "Sends a message to the user. Nothing else that you do is visible to them.",
        {"message": _text("The message for the user.")},
    ),
)

_SEARCH_TOOLS: Final = (
    _tool(
        "conversation_search",
        "Searches all messages that you and the user ever exchanged, by words and by meaning, including those that you "
        "no longer see.",
        {"query": _text("What to look for, in words or as a question.")},
        {
            "roles": _texts("Only messages of these speakers.", ("assistant", "user", "tool")),
            "limit": _number("The maximum number of results, from 1 to 100; 5 by default.", minimum=1, maximum=100),
            "start_date": _text(f"Only messages from this time on. {_DATE_FORMS}"),
            "end_date": _text(f"Only messages until this time; a date alone includes the whole day. {_DATE_FORMS}"),
        },
    ),
    _tool(
        "episodic_memory_search",
        "Searches what you have learned from earlier conversations: facts, each with the time since which it holds, "
        "and summaries of what happened. What you see at the head of the conversation is only a part of it.",
        {"query": _text("What to look for, in words or as a question.")},
        {
            "held_at": _text(f"Search what was true at this time, instead of now. {_DATE_FORMS}"),
            "limit": _number(
                "The maximum number of facts and of summaries, from 1 to 50; 5 by default.", minimum=1, maximum=50
            ),
        },
    ),
    _tool(
        "archival_memory_insert",
        "Stores a memory in the archive, where it stays until it is searched for. Write it so that it can be "
        "understood by itself on a later day.",
        {"content": _text("The memory, in whole sentences.")},
        {"tags": _texts("Words under which to find it again.")},
    ),
    _tool(
        "archival_memory_search",
        "Searches the archive by meaning and by words.",
        {"query": _text("What to look for.")},
        {
            "tags": _texts("Only memories with these tags."),
            "tag_match_mode": {
                "type": "string",
                "enum": ["any", "all"],
                "description": "Whether a memory must have one of the tags (any, the default) or every one (all).",
            },
            "top_k": _number("The maximum number of results, from 1 to 100; 10 by default.", minimum=1, maximum=100),
            "start_datetime": _text(f"Only memories created from this time on. {_DATE_FORMS}"),
            "end_datetime": _text(
                f"Only memories created until this time; a date alone includes the whole day. {_DATE_FORMS}"
            ),
        },
    ),
)

_EDIT_TOOLS: Final = (
    _tool(
        "core_memory_append",
        "Adds a line at the end of a memory block.",
        {**_label(), "content": _text(f"The text to add. {_NO_NUMBERS}")},
    ),
    _tool(
        "core_memory_replace",
        "Replaces a piece of text in a memory block, wherever it occurs.",
        {
            **_label(),
            "old_content": _text("The text to replace, exactly as it is in the block."),
            "new_content": _text(f"The replacement; empty to delete the text. {_NO_NUMBERS}"),
        },
    ),
    _tool(
        "memory_replace",
        "Replaces a piece of text in a memory block. The piece must occur exactly once: give enough of it to be clear.",
        {
            **_label(),
            "old_str": _text(f"The text to replace, exactly as it is in the block. {_NO_NUMBERS}"),
            "new_str": _text(f"The replacement; empty to delete the text. {_NO_NUMBERS}"),
        },
    ),
    _tool(
        "memory_insert",
        "Inserts lines of text into a memory block.",
        {**_label(), "new_str": _text(f"The text to insert. {_NO_NUMBERS}")},
        {"insert_line": _number(_BY_LINE)},
    ),
    _tool(
        "memory_rethink",
        "Replaces the whole value of a memory block, to reorganize or condense it. For small changes use the other "
        "tools.",
        {**_label(), "new_memory": _text(f"The whole new text of the block. {_NO_NUMBERS}")},
    ),
    _tool(
        "rethink_memory",
        "Replaces the whole value of a memory block with a new text that contains all current information from it, "
        "integrates what is new, and omits what is outdated or inconsistent.",
        {
            "new_memory": _text(f"The whole new text of the block. {_NO_NUMBERS}"),
            "target_block_label": _text("The label of the memory block to write to."),
        },
    ),
    _tool("memory_finish_edits", "Signals that you have finished editing memory.", {}),
    _tool(
        "memory_apply_patch",
        "Changes several places of a memory block by a patch. Hunks begin with @@; their lines begin with a space "
        "(unchanged), - (removed) or + (added). A hunk is found by its lines, so they must be exact and clear; one "
        "that only adds goes to the end.",
        {**_label(), "patch": _text(f"The patch. {_NO_NUMBERS}")},
    ),
    _tool(
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
            "path": _text("The block, as /memories/label. For every command except a rename to another label."),
            "file_text": _text("For create: the text of the block."),
            "description": _text("For create, and for rename with path: what the block is for."),
            "old_str": _text(f"For str_replace: the text to replace. {_NO_NUMBERS}"),
            "new_str": _text(f"For str_replace: the replacement. {_NO_NUMBERS}"),
            "insert_line": _number(f"For insert. {_BY_LINE}"),
            "insert_text": _text(f"For insert: the text. {_NO_NUMBERS}"),
            "old_path": _text("For rename: the current path of the block."),
            "new_path": _text("For rename: the new path of the block."),
        },
    ),
)

_VOICE_TOOLS: Final = (
    _tool(
        "search_memory",
        "Searches what you know and what was said before. The last message of the user is searched for automatically. "
        "A search takes time, so search only for what you should know and do not see.",
        {},
        {
            "convo_keyword_queries": _texts("Names, numbers or unusual words to look for in the conversation."),
            "start_minutes_ago": _number("Nothing older than this many minutes.", minimum=0),
            "end_minutes_ago": _number("Nothing newer than this many minutes.", minimum=0),
        },
    ),
    _tool(
        "store_memories",
        "Stores the older part of the transcript that you were given, in chunks, so that each can be found again.",
        {
            "chunks": _objects(
                "The chunks, in order; lines that belong together form one chunk.",
                {
                    "start_index": _number("The index of its first line.", minimum=0),
                    "end_index": _number("The index of its last line, which belongs to it.", minimum=0),
                    "context": _text("A sentence that says why it may matter later."),
                },
            ),
        },
    ),
    _tool(
        "rethink_user_memory",
        "Replaces the whole memory block about the user.",
        {"new_memory": _text(f"The whole new text of the block. {_NO_NUMBERS}")},
    ),
    _tool("finish_rethinking_memory", "Signals that you are satisfied with the memory about the user.", {}),
)

BUILTIN_SCHEMAS: Final[Mapping[str, ToolSchema]] = {
    schema.name: schema for schema in (*_SPEECH_TOOLS, *_SEARCH_TOOLS, *_EDIT_TOOLS, *_VOICE_TOOLS)
}
"""Every built-in tool by its name, without the arguments that mnemesh adds."""
