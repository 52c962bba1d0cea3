"""The capabilities of models."""

import re
from dataclasses import replace
from typing import Final

from mnemesh_orchestrator.llm.anthropic_messages.render import thinks
from mnemesh_orchestrator.llm.dialects import Api, dialect_of
from mnemesh_orchestrator.llm.openai_chat.render import reasons
from mnemesh_orchestrator.model.models import ModelInfo

# Names of models and families that read images, wherever they are served.
_SEES: Final = re.compile(
    r"(?:^|[/:._-])(?:claude|gemini|pixtral|llava|bakllava|moondream|minicpm-v|internvl|glm-[\d.]+v|grok-[4-9]|"
    r"gemma-?[34]|llama-?4|phi-[\d.]*-?(?:vision|multimodal)|mistral-(?:small-3\.[12]|medium-3|large-3)|"
    r"(?:chat)?gpt-(?:4o|4\.[15]|4-turbo|[5-9])|o1(?!-(?:mini|preview))|o3(?!-mini)|o4)|vision|[-_.\d]vl\b",
    re.IGNORECASE,
)


def reads_images(info: ModelInfo) -> bool:
    """Returns whether a model accepts images: as its organization says, or else by its name.

    No API says it in a common form. A model with an unknown name is taken for one that reads text only.
    """
    known = info.capabilities.get("image_input")
    if known is not None:
        return known
    return info.api != Api.REHEARSAL and _SEES.search(info.provider_model) is not None


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
        "reasoning": is_remote and (reasons(info) or thinks(info)),
        "image_input": reads_images(info),
        "temperature": is_remote and not reasons(info),
    }
    return replace(info, capabilities={**known, **info.capabilities})
