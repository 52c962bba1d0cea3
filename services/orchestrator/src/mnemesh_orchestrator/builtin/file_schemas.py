"""The schemas of the tools of files."""

from typing import Final

from mnemesh_orchestrator.builtin.schema_elements import number, text, tool

_WINDOW: Final = {
    "type": "object",
    "properties": {
        "file_name": text("The name of the file, with its folder, as it is listed."),
        "offset": {
            "type": ["integer", "null"],
            "description": "The number of lines to skip at the beginning; none by default.",
        },
        "length": {
            "type": ["integer", "null"],
            "description": "The number of lines to show; all up to the end by default.",
        },
    },
    "required": ["file_name"],
}

FILE_TOOLS: Final = (
    tool(
        "open_files",
        "Opens files, or other parts of open files, so that you see their lines in the section on directories. If too "
        "many files would be open, those that you used longest ago are closed. Choose a part of a long file by offset "
        'and length: {"file_name": "manuals/engine.md", "offset": 100, "length": 50} shows the lines 101 to 150.',
        {"file_requests": {"type": "array", "items": _WINDOW, "description": "The files to open."}},
        {
            "close_all_others": {
                "type": "boolean",
                "description": "Whether all other files are closed; false by default.",
            }
        },
    ),
    tool(
        "grep_files",
        "Finds the lines of all your files, open or not, that match a regular expression (RE2 syntax, upper and lower "
        "case are equal). A call returns up to 20 matches, each with its file and line number, and says with which "
        "offset the next call continues.",
        {"pattern": text("The regular expression, or a word.")},
        {
            "include": text('Only files whose names match: a pattern such as "*.py", or a regular expression.'),
            "context_lines": number(
                "The lines to show before and after each match; 1 by default.", minimum=0, maximum=20
            ),
            "offset": number("The number of matches to skip; the last call names it.", minimum=0),
        },
    ),
    tool(
        "semantic_search_files",
        "Finds the passages of all your files that are about something, whatever words they use. Each result names "
        "its file and lines.",
        {"query": text("What to look for, in words or as a question.")},
        {"limit": number("The number of results; 5 by default.", minimum=1, maximum=50)},
    ),
)
