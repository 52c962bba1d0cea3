"""The request that an agent is created from. It is stored until all parts exist, so that any replica can finish it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agents import AgentType, PromptPolicy
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.rules import ToolRule

_VARIABLE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with each `{{name}}` replaced by the value of that variable.

    Unknown names stay. Values are not expanded again.
    """
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block to create for the agent. A limit of 0 takes the default of the blocks service."""

    label: str
    value: str = ""
    description: str | None = None
    limit: int = 0
    read_only: bool = False
    metadata: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentDraft:
    """A request to create an agent. None, an empty model and an empty name take the default."""

    type: AgentType
    name: str = ""
    model: str = ""
    description: str | None = None
    system: str | None = None
    system_prompt_key: str | None = None
    """The key of a system prompt, used if `system` is None. None takes the prompt of the agent type."""
    memory_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for the prompt under the key. `system` and the blocks are expanded already."""
    model_settings: ModelSettings = ModelSettings()
    embedder: str | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    time_zone: str = "UTC"
    prompt_policy: PromptPolicy = PromptPolicy.REBUILD
    message_buffer_autoclear: bool = False
    continuation_message: str | None = None
    compaction_settings: CompactionSettings | None = None
    response_format: ResponseFormat | None = None
    enable_sleeptime: bool | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool = False
    identity_ids: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    include_base_tools: bool = True
    include_base_tool_rules: bool | None = None
    tool_names: tuple[str, ...] = ()
    tool_ids: tuple[str, ...] = ()
    tool_sources: tuple[str, ...] = ()
    blocks: tuple[NewBlock, ...] = ()
    block_ids: tuple[str, ...] = ()
    archive_ids: tuple[str, ...] = ()
    initial_messages: tuple[InputMessage, ...] | None = None


@dataclass(frozen=True, slots=True)
class Creation:
    """The record of a creation in progress: the draft, and the idempotency key to release if it fails."""

    draft: AgentDraft
    method: str | None = None
    request_id: str | None = None
