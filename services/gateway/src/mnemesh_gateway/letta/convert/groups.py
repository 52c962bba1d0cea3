"""Groups of the contract and of Letta's API."""

from __future__ import annotations

from typing import Any

from mnemesh.agents.v1 import groups_pb2 as pb

from mnemesh_gateway.letta.convert.values import present
from mnemesh_gateway.letta.schemas.agents import GroupOfAgent


def group_from_proto(group: pb.Group) -> GroupOfAgent:
    """Returns a group with the settings of its manager."""
    kind = group.manager_config.WhichOneof("config") or "round_robin"
    settings: Any = getattr(group.manager_config, kind)
    names = {field.name for field in settings.DESCRIPTOR.fields}

    def of(name: str) -> Any:
        return present(settings, name) if name in names else None

    return GroupOfAgent(
        id=group.id,
        manager_type=kind,
        agent_ids=list(group.agent_ids),
        description=group.description,
        project_id=present(group.provenance, "project_id"),
        template_id=present(group.provenance, "template_id"),
        base_template_id=present(group.provenance, "base_template_id"),
        deployment_id=present(group.provenance, "deployment_id"),
        shared_block_ids=list(group.shared_block_ids),
        manager_agent_id=settings.manager_agent_id if "manager_agent_id" in names else None,
        termination_token=of("termination_token"),
        max_turns=of("max_turns"),
        sleeptime_agent_frequency=of("sleeptime_agent_frequency"),
        turns_counter=present(group, "turns_counter"),
        last_processed_message_id=present(group, "last_processed_message_id"),
        max_message_buffer_length=of("max_message_buffer_length"),
        min_message_buffer_length=of("min_message_buffer_length"),
        hidden=group.hidden,
    )
