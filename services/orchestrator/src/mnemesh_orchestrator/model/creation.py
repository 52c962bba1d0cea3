"""The creation of agents with their parts, and what a deletion of an agent erases."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, get_type_hints

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_variables import require_valid_variables
from mnemesh_types.agents import ErasureReport
from mnemesh_types.blocks import Block
from mnemesh_types.provenance import Provenance
from mnemesh_types.twin import EPOCH

from mnemesh_orchestrator.model.agents import (
    AGENT_TYPES,
    MAX_NAME,
    Agent,
    AgentType,
    AttachedTool,
    base_rules,
    require_prompt_key,
    valid_agent_fields,
)
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType, require_valid_count
from mnemesh_orchestrator.model.inputs import InputMessage, require_valid_inputs

PERSONA_LABEL: Final = "memory_persona"
"""The label of a partner's own block."""
FREQUENCY: Final = 5
"""The number of turns of an agent after which its partner runs."""
LONGEST_BUFFER: Final = 30
SHORTEST_BUFFER: Final = 15
_SUFFIX: Final = "-sleeptime"
_FIELD: Final = "agent.enable_sleeptime"

_VARIABLE: Final = re.compile(r"\{\{([^{}]*)\}\}")


@dataclass(frozen=True, slots=True)
class Partnership:
    """A partner, and the group in which it works for an agent.

    Transcripts of a new group begin after the agent's message `start_sequence_id`.
    """

    partner: Agent
    group: Group
    start_sequence_id: int = 0


@dataclass(frozen=True, slots=True)
class PartnerCreation:
    """The record of an update in progress that creates a partner. It has all that another process needs to finish it.

    `values` are the values of the update by the field names of `Agent`, `method` and `request_id` its idempotency key,
    and `if_revision` the revision that the agent must have. A new group begins with `turns_counter`.
    """

    agent_id: str
    group_id: str
    subject_id: str
    values: dict[str, msgspec.Raw] = field(default_factory=dict)
    if_revision: int | None = None
    method: str | None = None
    request_id: str | None = None
    turns_counter: int = 0


@dataclass(frozen=True, slots=True)
class PartnerStart:
    """An agent whose update needs a partner, and the partner in creation with its record.

    `is_own` is false if another update creates the partner. `idle` are partners that were created for the agent and
    that are in no sleeptime group of it, if it has no others; `group` is its group without members. Without any of
    these, the update was applied.
    """

    agent: Agent
    partner: Agent | None = None
    creation: bytes = b""
    is_own: bool = True
    idle: tuple[Agent, ...] = ()
    group: Group | None = None


def require_partner_type(agent_type: AgentType) -> AgentType:
    """Returns the type of the partners of agents of a type.

    Raises:
        InvalidArgument: Agents of this type have no partners.
    """
    partner = AGENT_TYPES[agent_type].partner
    if partner is None:
        raise InvalidArgument(f"{_FIELD} must not be set for {agent_type}, which has no partner.", field=_FIELD)
    return partner


def partner_of(agent: Agent, partner_id: str, system: str, subject_id: str, now: datetime) -> Agent:
    """Returns the record of a new partner of an agent, with the tools of its type and the agent's model.

    Args:
        system: The system prompt of the partner.
        subject_id: The creator.
        now: The time of the creation.
    """
    kind = require_partner_type(agent.type)
    spec = AGENT_TYPES[kind]
    return Agent(
        id=partner_id,
        organization_id=agent.organization_id,
        name=agent.name[: MAX_NAME - len(_SUFFIX)] + _SUFFIX,
        type=kind,
        system=system,
        model=agent.model,
        created_at=now,
        updated_at=now,
        default_conversation_id=derive_id("conv", partner_id),
        description=f"Maintains the memory of {agent.name} in the background.",
        model_settings=agent.model_settings,
        embedder=agent.embedder,
        tools=tuple(AttachedTool(name) for name in spec.base_tools),
        tool_rules=(*spec.rules, *base_rules(spec.base_tools)),
        time_zone=agent.time_zone,
        hidden=agent.hidden,
        created_for_agent_id=agent.id,
        provenance=Provenance(
            created_by_id=subject_id, last_updated_by_id=subject_id, project_id=agent.provenance.project_id
        ),
    )


def partner_group_id(partner_id: str) -> str:
    """Returns the id of the group that is created with a partner."""
    return derive_id("group", partner_id)


def partner_group(agent: Agent, partner: Agent, group_id: str, turns_counter: int) -> Group:
    """Returns the group in which a partner works for an agent that has no other partner.

    Args:
        turns_counter: The count of turns with which it begins.
    """
    manager = ManagerConfig(ManagerType.SLEEPTIME, agent.id, frequency=FREQUENCY)
    if partner.type is AgentType.VOICE_SLEEPTIME:
        manager = ManagerConfig(
            ManagerType.VOICE_SLEEPTIME,
            agent.id,
            max_message_buffer_length=LONGEST_BUFFER,
            min_message_buffer_length=SHORTEST_BUFFER,
        )
    return Group(
        id=group_id,
        organization_id=agent.organization_id,
        created_at=partner.created_at,
        updated_at=partner.created_at,
        description=f"{agent.name} and the partner that maintains its memory.",
        agent_ids=(partner.id,),
        manager=manager,
        hidden=agent.hidden,
        provenance=partner.provenance,
        turns_counter=turns_counter,
    )


def encode_values(values: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Returns new values of fields of `Agent` for a record. The value of `provenance` maps its fields to new values."""
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def decode_values(values: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Returns the values of a record."""
    types = get_type_hints(Agent) | {"provenance": dict[str, str | None]}
    return {name: msgspec.json.decode(value, type=types[name]) for name, value in values.items()}


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with each `{{name}}` replaced by the value of that variable.

    Unknown names stay. Values are not expanded again.
    """
    return _VARIABLE.sub(lambda found: variables.get(found[1].strip(), found[0]), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDraft(Agent):
    """A request to create an agent: its record, without what the server decides, and its parts.

    An empty model and an empty name take the default. So does an empty `system`: the prompt under `system_prompt_key`.
    """

    id: str = ""
    organization_id: str = ""
    name: str = ""
    system: str = ""
    model: str = ""
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH
    default_conversation_id: str = ""
    system_prompt_key: str | None = None
    """The key of a system prompt. None takes the prompt of the agent type."""
    memory_variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the `{{name}}` in the blocks, and in the system prompt, whether it is given or found by its key."""
    sleeptime_turns_counter: int = 0
    """The count of turns with which the group of its partner begins."""
    include_base_tools: bool = True
    include_base_tool_rules: bool | None = None
    include_multi_agent_tools: bool = False
    tool_names: tuple[str, ...] = ()
    tool_ids: tuple[str, ...] = ()
    tool_sources: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_ids: tuple[str, ...] = ()
    archive_ids: tuple[str, ...] = ()
    folder_ids: tuple[str, ...] = ()
    include_default_folder: bool = False
    """Whether the agent gets a new folder."""
    opens_folder_files: bool = False
    """True if the files of its folders are opened without a request."""
    initial_messages: tuple[InputMessage, ...] | None = None
    """The first messages of its window; None takes those of the agent type."""
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Creation:
    """The record of a creation in progress: the draft, and the idempotency key to release if it fails."""

    draft: AgentDraft
    method: str | None = None
    request_id: str | None = None


def prepared_draft(draft: AgentDraft) -> AgentDraft:
    """Returns the draft with the variables expanded in its prompt and blocks, if it follows every rule of an agent."""
    variables = draft.memory_variables
    _require_valid_variables(variables)
    require_valid_variables(draft.secret_values, "secrets")
    if draft.system_prompt_key is not None:
        require_prompt_key(draft.system_prompt_key, "system_prompt_key")
        if draft.system:
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
        system=filled(draft.system, variables),
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


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """Resources that are erased with an agent, besides those created for it. Resources of other agents stay."""

    unshared_blocks: bool = False
    """Blocks that were attached to the agent and that no other agent holds."""
    unshared_archives: bool = False
    """Archives that were attached to the agent and that no other agent holds, with their passages."""


CREATED_FOR_AGENT: Final = ErasureScope()


UnfinishedAgent = tuple[Agent, bytes]
"""A CREATING or DELETING agent, and the encoded record of its creation or deletion."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The record of a deletion in progress. It has all that another process needs to finish it."""

    unshared_blocks: bool = False
    unshared_archives: bool = False
    together_with: tuple[str, ...] = ()
    """The other agents that the same request deletes: what was created for one of them goes with the last holder."""
    partner_id: str | None = None
    """A partner that was never visible: it has no record of its own, and its parts are erased with the agent."""

    @property
    def scope(self) -> ErasureScope:
        return ErasureScope(self.unshared_blocks, self.unshared_archives)


@dataclass(frozen=True, slots=True)
class DeletionStart:
    """The agents that a request deletes, each with its record, and the sleeptime groups that end with them."""

    agents: tuple[tuple[str, Deletion], ...] = ()
    group_ids: tuple[str, ...] = ()


class Erased(ErasureReport):
    """The number of erased items by store. `runs` counts records of runs, in agents that were kept."""

    __slots__ = ()

    def __add__(self, other: "Erased") -> "Erased":
        return Erased(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
