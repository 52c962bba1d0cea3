"""The request that an agent is created from. It is stored until all parts exist, so that any replica can finish it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.secret_variables import require_valid_variables
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agents import AgentType, PromptPolicy, valid_agent_fields
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.core_memory import NewBlock
from mnemesh_orchestrator.model.group_rules import require_valid_count
from mnemesh_orchestrator.model.inputs import InputMessage, require_valid_inputs
from mnemesh_orchestrator.model.memory_extraction import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.partners import require_partner_type
from mnemesh_orchestrator.model.prompts import require_prompt_key
from mnemesh_orchestrator.model.rules import ToolRule

_VARIABLE: Final = re.compile(r"\{\{([^{}]*)\}\}")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with each `{{name}}` replaced by the value of that variable.

    Unknown names stay. Values are not expanded again.
    """
    return _VARIABLE.sub(lambda found: variables.get(found[1].strip(), found[0]), text)


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
    """Values of the `{{name}}` in the blocks, and in the system prompt, whether it is given or found by its key."""
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
    memory_extraction: MemoryExtractionSettings | None = None
    response_format: ResponseFormat | None = None
    enable_sleeptime: bool | None = None
    sleeptime_turns_counter: int = 0
    """The count of turns with which the group of its partner begins."""
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool = False
    identity_ids: tuple[str, ...] = ()
    approval_timeout_seconds: float | None = None
    provenance: Provenance = Provenance()
    include_base_tools: bool = True
    include_base_tool_rules: bool | None = None
    include_multi_agent_tools: bool = False
    tool_names: tuple[str, ...] = ()
    tool_ids: tuple[str, ...] = ()
    tool_sources: tuple[str, ...] = ()
    blocks: tuple[NewBlock, ...] = ()
    block_ids: tuple[str, ...] = ()
    archive_ids: tuple[str, ...] = ()
    folder_ids: tuple[str, ...] = ()
    include_default_folder: bool = False
    """Whether the agent gets a new folder."""
    opens_folder_files: bool = False
    """True if the files of its folders are opened without a request."""
    initial_messages: tuple[InputMessage, ...] | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables of the tools. They are encrypted in the record of the agent, not stored here."""


@dataclass(frozen=True, slots=True)
class Creation:
    """The record of a creation in progress: the draft, and the idempotency key to release if it fails."""

    draft: AgentDraft
    method: str | None = None
    request_id: str | None = None


def prepared_draft(draft: AgentDraft) -> AgentDraft:
    """Returns the draft with the variables expanded in its prompt and blocks, if it follows every rule of an agent.

    Raises:
        InvalidArgument: A field breaks its rule. Metadata: field, such as `agent.name` or `blocks[0].label`.
    """
    variables = draft.memory_variables
    _require_valid_variables(variables)
    require_valid_variables(draft.secrets, "secrets")
    if draft.system_prompt_key is not None:
        require_prompt_key(draft.system_prompt_key, "system_prompt_key")
        if draft.system is not None:
            raise InvalidArgument("system_prompt_key and agent.system exclude each other.", field="system_prompt_key")
    if draft.enable_sleeptime:
        require_partner_type(draft.type)
    require_valid_count(draft.sleeptime_turns_counter, "sleeptime_turns_counter")
    for index, block in enumerate(draft.blocks):
        if not block.label:
            raise InvalidArgument(f"blocks[{index}].label is required.", field=f"blocks[{index}].label")
    if draft.initial_messages is not None:
        first = require_valid_inputs(draft.initial_messages, "initial_messages.messages")
        draft = replace(draft, initial_messages=first)
    expanded = replace(
        draft,
        system=None if draft.system is None else filled(draft.system, variables),
        blocks=tuple(replace(block, value=filled(block.value, variables)) for block in draft.blocks),
    )
    return replace(expanded, **valid_agent_fields({item.name: getattr(expanded, item.name) for item in fields(draft)}))


def _require_valid_variables(variables: Mapping[str, str]) -> None:
    for name in variables:
        if not name.strip() or name != name.strip() or set(name) & set("{}"):
            raise InvalidArgument(
                f"memory_variables must have names that can be written in braces: {name[:64]!r}.",
                field="memory_variables",
            )
