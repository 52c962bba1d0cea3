"""The capabilities of models."""

from dataclasses import replace

from mnemesh_orchestrator.llm.dialects import Api, dialect_of
from mnemesh_orchestrator.llm.openai_chat.render import reasons
from mnemesh_orchestrator.model.models import ModelInfo


def with_capabilities(info: ModelInfo) -> ModelInfo:
    """Returns the model with all its capabilities: those of its provider's API, overridden by the organization's.

    They say what the API accepts. No API reports how well a model does something.
    """
    dialect = dialect_of(info)
    is_remote = info.api != Api.REHEARSAL
    known = {
        "streaming": True,
        "tool_calling": True,
        "parallel_tool_calls": is_remote and dialect.parallel_flag,
        "forced_tool_choice": is_remote,
        "strict_tool_schemas": is_remote and dialect.strict_tools,
        "structured_output": is_remote and dialect.json_schema,
        "temperature": is_remote and not reasons(info),
    }
    return replace(info, capabilities={**known, **info.capabilities})
