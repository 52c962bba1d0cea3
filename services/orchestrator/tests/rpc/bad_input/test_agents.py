"""Invalid agents and settings of compactions are refused with their field."""

from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id

from ..conftest import Wire
from .calls import AGENT, creating, said

pytestmark = pytest.mark.asyncio(loop_scope="module")


def compacting(**settings: Any) -> dict[str, Any]:
    return {"compaction_settings": settings}


def rule(**fields: Any) -> dict[str, Any]:
    return {"tool_rules": [agents_pb2.ToolRule(**fields)]}


BAD_AGENTS: list[tuple[Any, str]] = [
    (creating(agent={"type": 99}), "agent.type"),
    (creating(agent={"name": "a\nb"}), "agent.name"),
    (creating(agent={"name": "x" * 513}), "agent.name"),
    (creating(agent={"system": "a\0b"}), "agent.system"),
    (creating(agent={"tags": ["ok", ""]}), "agent.tags"),
    (creating(agent={"metadata": "[1]"}), "agent.metadata"),
    (creating(agent={"metadata": "{"}), "agent.metadata"),
    (creating(agent={"time_zone": "Mars/Olympus"}), "agent.time_zone"),
    (creating(agent={"time_zone": "../etc/passwd"}), "agent.time_zone"),
    (creating(agent={"prompt_policy": 9}), "agent.prompt_policy"),
    (creating(agent={"model_settings": {"context_window": 0}}), "agent.model_settings.context_window"),
    (creating(agent={"model_settings": {"temperature": 3}}), "agent.model_settings.temperature"),
    (creating(agent={"model_settings": {"provider_options": "x"}}), "agent.model_settings.provider_options"),
    (creating(agent={"type": 3, "continuation_message": "a\0b"}), "agent.continuation_message"),
    (creating(agent={"type": 3, "continuation_message": " "}), "agent.continuation_message"),
    (creating(agent={"type": 3, "continuation_message": "x" * 2001}), "agent.continuation_message"),
    (creating(agent={"type": 2, "continuation_message": "Continue."}), "agent.continuation_message"),
    (creating(agent={"compaction_settings": {"mode": 99}}), "agent.compaction_settings.mode"),
    (
        creating(agent={"compaction_settings": {"sliding_window_percentage": 1.5}}),
        "agent.compaction_settings.sliding_window_percentage",
    ),
    (creating(agent=compacting(trigger_ratio=0)), "agent.compaction_settings.trigger_ratio"),
    (creating(agent=compacting(trigger_ratio=1.1)), "agent.compaction_settings.trigger_ratio"),
    (creating(agent=compacting(clip_chars=0)), "agent.compaction_settings.clip_chars"),
    (creating(agent=compacting(model="no-provider")), "agent.compaction_settings.model"),
    (creating(agent=compacting(prompt="a\0b")), "agent.compaction_settings.prompt"),
    (
        creating(agent=compacting(model_settings={"temperature": 3})),
        "agent.compaction_settings.model_settings.temperature",
    ),
    (
        creating(agent={"response_format": {"json_schema": {"name": "n", "schema": "no"}}}),
        "agent.response_format.json_schema.schema",
    ),
    (creating(agent=rule()), "agent.tool_rules[0]"),
    (creating(agent=rule(exit_loop={"tool_name": ""})), "agent.tool_rules[0]"),
    (creating(agent=rule(max_count_per_step={"tool_name": "a", "max_count": 0})), "agent.tool_rules[0]"),
    (creating(agent=rule(constrain_child_tools={"tool_name": "a", "children": []})), "agent.tool_rules[0]"),
    (
        creating(
            agent=rule(
                constrain_child_tools={
                    "tool_name": "a",
                    "children": ["b"],
                    "child_arguments": [{"tool_name": "c", "arguments": "{}"}],
                }
            )
        ),
        "agent.tool_rules[0]",
    ),
    (creating(agent=rule(run_first={"tool_name": "a", "arguments": "[]"})), "agent.tool_rules[0]"),
    (creating(agent=rule(conditional={"tool_name": "a", "outcomes": [{"child": "b"}]})), "agent.tool_rules[0]"),
    (creating(blocks=[blocks_pb2.Block(value="x")]), "blocks[0].label"),
    (creating(tool_ids=["tool-1"]), "tool_ids"),
    (creating(block_ids=["x"]), "block_ids"),
    (creating(archive_ids=[derive_id("block", "a test")]), "archive_ids"),
    (creating(initial_messages={"messages": [said(), said(content=[])]}), "initial_messages.messages[1].content"),
    (creating(memory_variables={"": "x"}), "memory_variables"),
    (creating(memory_variables={"a}": "x"}), "memory_variables"),
    (creating(request_id="x" * 201), "request_id"),
    (creating(agent={"approval_timeout": {"seconds": -1}}), "agent.approval_timeout"),
    (creating(agent={"group_ids": ["group-1"]}), "agent.group_ids"),
    (creating(agent={"type": 7, "enable_sleeptime": True}), "agent.enable_sleeptime"),
    (creating(agent={"type": 9, "enable_sleeptime": True}), "agent.enable_sleeptime"),
    (
        creating(agent={"tool_rules": [{"requires_approval": {"tool_name": "t", "arguments_schema": '{"type": 1}'}}]}),
        "agent.tool_rules[0]",
    ),
    (creating(agent={"metadata": '{"a": "\\ud800"}'}), "agent.metadata"),
    (
        creating(agent={"model_settings": {"provider_options": '{"a": "\\ud800"}'}}),
        "agent.model_settings.provider_options",
    ),
    (
        creating(agent={"tool_rules": [{"run_first": {"tool_name": "t", "arguments": '{"a": "\\ud800"}'}}]}),
        "agent.tool_rules[0]",
    ),
    (
        creating(
            agent={
                "tool_rules": [
                    {
                        "constrain_child_tools": {
                            "tool_name": "t",
                            "children": ["c"],
                            "child_arguments": [{"tool_name": "c", "arguments": '{"a": "\\ud800"}'}],
                        }
                    }
                ]
            }
        ),
        "agent.tool_rules[0]",
    ),
    (
        creating(agent={"response_format": {"json_schema": {"name": "n", "schema": '{"title": "\\ud800"}'}}}),
        "agent.response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BAD_AGENTS, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_agent_is_refused_with_its_field(wire: Wire, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CreateAgent(request_)
    assert raised.value.field == field


async def test_ids_of_folders_are_checked(wire: Wire) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CreateAgent(creating(folder_ids=["folder-1"]))
    assert raised.value.field == "folder_ids"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"mode": 99}, "settings.mode"),
        ({"sliding_window_percentage": 0}, "settings.sliding_window_percentage"),
        ({"clip_chars": -1}, "settings.clip_chars"),
        ({"trigger_ratio": 2}, "settings.trigger_ratio"),
        ({"model": "/x"}, "settings.model"),
        ({"memory_scope": ""}, "settings.memory_scope"),
        ({"memory_scope": "x" * 256}, "settings.memory_scope"),
        ({"memory_scope": "a\0b"}, "settings.memory_scope"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_compaction_settings_are_refused(wire: Wire, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CompactConversation(
            agents_service_pb2.CompactConversationRequest(agent_id=AGENT, settings=settings)
        )
    assert raised.value.field == field
