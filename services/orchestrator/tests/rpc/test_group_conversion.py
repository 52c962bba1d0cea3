"""Groups keep their values on the way to the contract and back, and masks change exactly the fields that they name."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.rpc.groups import (
    group_draft_from_proto,
    group_to_proto,
    group_update_from_proto,
    manager_from_proto,
    manager_to_proto,
)
from mnemesh_types.provenance import Provenance

GROUP, ADA = derive_id("group", "1"), derive_id("agent", "1")
MANAGERS = [
    ManagerConfig(),
    ManagerConfig(max_turns=3),
    ManagerConfig(ManagerType.SUPERVISOR, ADA),
    ManagerConfig(ManagerType.DYNAMIC, ADA),
    ManagerConfig(ManagerType.DYNAMIC, ADA, max_turns=7, termination_token="END"),
    ManagerConfig(ManagerType.SLEEPTIME, ADA, frequency=5, interval_seconds=90.5, inactivity_seconds=60, max_steps=9),
    ManagerConfig(
        ManagerType.VOICE_SLEEPTIME, ADA, max_steps=2, max_message_buffer_length=20, min_message_buffer_length=10
    ),
    ManagerConfig(ManagerType.SWARM),
]


@pytest.mark.parametrize("manager", MANAGERS, ids=lambda manager: manager.type)
def test_manager_is_returned_unchanged(manager: ManagerConfig) -> None:
    assert manager_from_proto(manager_to_proto(manager)) == manager


def test_group_is_returned_unchanged() -> None:
    epoch = datetime.fromtimestamp(0, UTC)
    draft = Group(
        "",
        "",
        epoch,
        epoch,
        description="d",
        agent_ids=(ADA,),
        manager=MANAGERS[5],
        shared_block_ids=(derive_id("block", "1"),),
        hidden=True,
        metadata="{}",
        provenance=Provenance(project_id="p", entity_id=""),
    )
    assert group_draft_from_proto(group_to_proto(draft)) == draft
    assert group_to_proto(draft).turns_counter == 0
    counted = replace(draft, turns_counter=4, last_processed_message_id="message-1", last_sleeptime_at=epoch)
    assert group_draft_from_proto(group_to_proto(counted)) == replace(draft, turns_counter=4), "the rest is ignored"
    assert not group_to_proto(replace(draft, manager=ManagerConfig())).HasField("turns_counter")


@pytest.mark.parametrize(
    ("paths", "fields", "changes"),
    [
        (["description"], {"description": "d", "hidden": True}, {"description": "d"}),
        (["description", "metadata"], {}, {"description": "", "metadata": None}),
        (["turns_counter"], {"turns_counter": -1}, {"turns_counter": -1}),
        (["turns_counter"], {}, {"turns_counter": 0}),
        (["manager_config"], {}, {"manager": ManagerConfig()}),
        (["manager_config"], {"manager_config": {"swarm": {}}}, {"manager": ManagerConfig(ManagerType.SWARM)}),
        (
            ["manager_config.round_robin.max_turns"],
            {"manager_config": {"round_robin": {"max_turns": 2}}},
            {"manager_fields": (ManagerType.ROUND_ROBIN, {"max_turns": 2})},
        ),
        (
            ["manager_config.dynamic.max_turns", "manager_config.dynamic.termination_token"],
            {"manager_config": {"dynamic": {"termination_token": "x"}}},
            {"manager_fields": (ManagerType.DYNAMIC, {"max_turns": None, "termination_token": "x"})},
        ),
        (
            ["manager_config.sleeptime.interval", "manager_config.sleeptime.sleeptime_agent_frequency"],
            {"manager_config": {"sleeptime": {"interval": {"seconds": 60}}}},
            {"manager_fields": (ManagerType.SLEEPTIME, {"interval_seconds": 60.0, "frequency": None})},
        ),
        (["provenance.project_id"], {"provenance": {"template_id": "t"}}, {"provenance": {"project_id": None}}),
        (["agent_ids", "shared_block_ids"], {"agent_ids": [ADA]}, {"agent_ids": (ADA,), "shared_block_ids": ()}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_mask_changes_the_fields_that_it_names(
    paths: list[str], fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    request = rpc.UpdateGroupRequest(group=pb.Group(id=GROUP, **fields), update_mask=FieldMask(paths=paths))
    assert group_update_from_proto(request) == (GROUP, changes)
