"""Function schemas: generated from Python source without executing it, and applied to the arguments of a call."""

from mnemesh_tools.schema.arguments import coerce
from mnemesh_tools.schema.source import FunctionSchema, SourceFacts, check_name, from_source, read_source
from mnemesh_tools.schema.worker import read_in_process

__all__ = ["FunctionSchema", "SourceFacts", "check_name", "coerce", "from_source", "read_in_process", "read_source"]
