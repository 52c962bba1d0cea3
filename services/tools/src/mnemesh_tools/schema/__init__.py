"""Function schemas: generated from sources without executing them, and applied to the arguments of a call."""

from mnemesh_tools.schema.arguments import coerce
from mnemesh_tools.schema.source import (
    MAX_NAME_CHARS,
    MAX_SOURCE_CHARS,
    FunctionSchema,
    SourceFacts,
    check_name,
    from_source,
    is_name,
    read_source,
)
from mnemesh_tools.schema.typescript import program_module, read_typescript, tool_module
from mnemesh_tools.schema.worker import read_in_process

__all__ = [
    "MAX_NAME_CHARS",
    "MAX_SOURCE_CHARS",
    "FunctionSchema",
    "SourceFacts",
    "check_name",
    "coerce",
    "from_source",
    "is_name",
    "program_module",
    "read_in_process",
    "read_source",
    "read_typescript",
    "tool_module",
]
