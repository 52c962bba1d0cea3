"""The schemas of the tools that run code."""

from typing import Any, Final

from mnemesh_orchestrator.builtin.schema_elements import text, tool

RUN_CODE: Final = "run_code"
RUN_CODE_WITH_TOOLS: Final = "run_code_with_tools"
_RESULT: Final = (
    "It runs in a sandbox without a network or files of yours. Returns the value of the last expression, and what the "
    "code printed, as JSON."
)


def _language(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names), "description": "The language of the code. The default is python."}


CODE_TOOLS: Final = (
    tool(
        RUN_CODE,
        f"Runs code. {_RESULT}",
        {"code": text("The code to run.")},
        {"language": _language("python", "javascript", "typescript", "js", "ts", "r", "java")},
    ),
    tool(
        RUN_CODE_WITH_TOOLS,
        'Runs code that can call your tools as functions, such as archival_memory_search(query="tea"). Each returns '
        "the text that you would read; a failing one raises an exception. In js and ts, await them. Tools that send "
        f"messages, end your turn or need approval cannot be called. {_RESULT}",
        {"code": text("The code to run.")},
        {"language": _language("python", "javascript", "typescript", "js", "ts")},
    ),
)
CODE_TOOL_NAMES: Final = frozenset(schema.name for schema in CODE_TOOLS)
