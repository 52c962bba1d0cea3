"""The schemas of the tools that search and change recall, archival and episodic memory."""

from typing import Final

from mnemesh_orchestrator.builtin.schema_elements import number, text, texts, tool

_DATE_FORMS: Final = "YYYY-MM-DD or YYYY-MM-DDTHH:MM, in your time zone unless an offset is given"
_END_DATE: Final = "in the same form; a date includes its day"
_QUERY: Final = text("What to look for, in words or as a question.")
_QUERIES: Final = texts("Other wordings, or parts of the question.")

SEARCH_TOOLS: Final = (
    tool(
        "conversation_search",
        "Searches all messages that you and the user ever exchanged, by words and by meaning. A time in a query, such "
        "as last week, prefers messages of that time.",
        {"query": _QUERY},
        {
            "queries": _QUERIES,
            "roles": texts("Only messages of these roles.", ("assistant", "user", "tool")),
            "speakers": texts("Only what these people said, by name."),
            "limit": number("The number of results; 5 by default.", minimum=1, maximum=100),
            "surrounding": number("Messages to show before and after each result."),
            "start_date": text(f"Only messages from this time on: {_DATE_FORMS}."),
            "end_date": text(f"Only messages until this time, {_END_DATE}."),
        },
    ),
    tool(
        "episodic_memory_search",
        "Searches what you have learned from earlier conversations: facts, each with the time since which it holds, "
        "and summaries of what happened. What you see at the head of the conversation is only a part of it. Ask for "
        "a time in words: 'Where did Ana live last year?', or 'What did you know in May?' for what you knew then.",
        {"query": _QUERY},
        {
            "held_at": text(f"Search what was true at this time, instead of now: {_DATE_FORMS}."),
            "limit": number("The number of facts and of summaries; 5 by default.", minimum=1, maximum=50),
        },
    ),
    tool(
        "episodic_memory_correct",
        "Replaces a fact that you have learned and that is wrong or no longer true. The earlier statement stays in the "
        "history, and the owner can restore it.",
        {
            "fact_id": text("The id of the fact, as episodic_memory_search returns it."),
            "statement": text("What holds instead, as one statement that is understood by itself."),
        },
        {"reason": text("Why, in a few words.")},
    ),
    tool(
        "episodic_memory_forget",
        "Withdraws a fact that you have learned, if a user asks you to forget it or if it is wrong and nothing takes "
        "its place. It no longer counts; the owner can restore it.",
        {"fact_id": text("The id of the fact, as episodic_memory_search returns it.")},
        {"reason": text("Why, in a few words.")},
    ),
    tool(
        "archival_memory_insert",
        "Stores a memory in the archive, where it stays until it is searched for. Write it so that it can be "
        "understood by itself on a later day.",
        {"content": text("The memory, in whole sentences.")},
        {"tags": texts("Words under which to find it again.")},
    ),
    tool(
        "archival_memory_search",
        "Searches the archive by meaning and by words. A time in a query prefers memories of that time.",
        {"query": _QUERY},
        {
            "queries": _QUERIES,
            "tags": texts("Only memories with these tags."),
            "tag_match_mode": {
                "type": "string",
                "enum": ["any", "all"],
                "description": "Whether a memory has one of the tags (any, the default) or all.",
            },
            "top_k": number("The number of results; 10 by default.", minimum=1, maximum=100),
            "surrounding": number("Parts of its text to show before and after each result."),
            "start_datetime": text(f"Only memories created from this time on: {_DATE_FORMS}."),
            "end_datetime": text(f"Only memories created until this time, {_END_DATE}."),
        },
    ),
)
