"""Function schemas: generated from Python source without executing it, and applied to the arguments of a call."""

from mnemesh_tools.schema.arguments import coerce
from mnemesh_tools.schema.source import FunctionSchema, check_name, from_source, function_name

__all__ = ["FunctionSchema", "check_name", "coerce", "from_source", "function_name"]
