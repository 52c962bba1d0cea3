"""The table of agent types: prompt, tools and rules of a new agent."""

import pytest
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.model.agents import (
    AGENT_TYPES,
    CONTINUING_TOOLS,
    TERMINAL_TOOLS,
    AgentType,
    FirstMessages,
    base_rules,
    base_rules_by_default,
    shows_line_numbers,
)
from mnemesh_orchestrator.model.rules import ContinueLoop, ExitLoop


def test_every_type_has_a_row() -> None:
    assert set(AGENT_TYPES) == set(AgentType)


def test_chat_types_have_tools_of_every_kind_of_memory() -> None:
    tiers = {
        "conversation_search",
        "archival_memory_insert",
        "archival_memory_search",
        "memory_replace",
        "memory_insert",
    }
    assert set(AGENT_TYPES[AgentType.MEMGPT_V2].base_tools) == tiers | {"send_message"}
    assert set(AGENT_TYPES[AgentType.LETTA_V1].base_tools) == tiers


def test_tools_of_the_types_exist_and_their_rules_are_about_them() -> None:
    assert {name for spec in AGENT_TYPES.values() for name in spec.base_tools} <= set(BUILTIN_SCHEMAS)
    for spec in AGENT_TYPES.values():
        assert {rule.tool_name for rule in spec.rules} <= set(spec.base_tools)


def test_letta_v1_answers_in_plain_text() -> None:
    spec = AGENT_TYPES[AgentType.LETTA_V1]
    assert (spec.policy, spec.inner_thoughts, spec.first_messages) == ("v3", False, FirstMessages.NONE)
    assert not base_rules_by_default(AgentType.LETTA_V1, "openai/gpt-4o")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/gpt-4o", True),
        ("openai/gpt-5", False),
        ("openai/gpt-5-mini", True),
        ("anthropic/claude-3-5-sonnet-20241022", False),
        ("anthropic/claude-4-sonnet", False),
        ("google_ai/gemini-2.5-pro", False),
        ("google_ai/gemini-2.5-flash", True),
        ("mnemesh/rehearsal", True),
    ],
)
def test_whether_base_rules_are_added_depends_on_the_model(model: str, expected: bool) -> None:
    assert base_rules_by_default(AgentType.MEMGPT_V2, model) is expected
    assert base_rules_by_default(AgentType.SLEEPTIME, model)


def test_base_rules_end_after_speaking_and_continue_after_memory_edits() -> None:
    rules = base_rules(["send_message", "memory_insert", "my_own_tool", "memory_finish_edits"])
    assert rules == (ExitLoop("send_message"), ContinueLoop("memory_insert"), ExitLoop("memory_finish_edits"))


def test_every_builtin_tool_has_a_base_rule() -> None:
    assert set(BUILTIN_SCHEMAS) <= TERMINAL_TOOLS | CONTINUING_TOOLS
    assert not TERMINAL_TOOLS & CONTINUING_TOOLS


def test_lines_are_numbered_for_one_provider_and_three_types() -> None:
    numbered = {kind for kind in AgentType if shows_line_numbers(kind, "anthropic")}
    assert numbered == {AgentType.SLEEPTIME, AgentType.MEMGPT_V2, AgentType.LETTA_V1}
    assert not any(shows_line_numbers(kind, "openai") for kind in AgentType)
