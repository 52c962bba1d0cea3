"""Partners: agents that maintain the memory of another agent in the background, and the groups that they work in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, get_type_hints

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, base_rules
from mnemesh_orchestrator.model.agents import MAX_NAME, Agent, AgentType, AttachedTool
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType

PERSONA_LABEL: Final = "memory_persona"
"""The label of a partner's own block."""
FREQUENCY: Final = 5
"""The number of turns of an agent after which its partner runs."""
LONGEST_BUFFER: Final = 30
SHORTEST_BUFFER: Final = 15
_SUFFIX: Final = "-sleeptime"
_FIELD: Final = "agent.enable_sleeptime"


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
        agent: The agent.
        partner_id: The id of the partner.
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
        agent: The agent.
        partner: The partner.
        group_id: The id of the group.
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
