"""The system message, compared with golden files, and the comparison that decides whether it is rendered again.

The files are the contract. To look at a difference: `diff` the file against the text in the assertion.
"""

from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.rules import (
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    ParentLastTool,
    RequiredBeforeExit,
    RequiresApproval,
    RunFirst,
)
from mnemesh_orchestrator.prompt import assembly
from mnemesh_orchestrator.prompt.assembly import compose, memory_section, metadata_section
from mnemesh_types.blocks import Block

GOLDEN = Path(__file__).parent / "golden"

PERSONA = Block(
    id="block-1",
    label="persona",
    value="I am Ada.\nI like {braces} and <tags>.",
    limit=5000,
    description="Who the agent is.",
)
HUMAN = Block(id="block-2", label="human", value="Name: Zoë", limit=20000, description="Who the user is.")
POLICY = Block(id="block-3", label="team/policy", value="", limit=100, description=None, read_only=True)

IDENTITY = "- AGENT_ID: agent-1\n- CONVERSATION_ID: default"
NO_METADATA = metadata_section(IDENTITY, date(2026, 1, 5), None, 0, 0, ())
EVERY_RULE = (
    RunFirst("look"),
    ExitLoop("send_message"),
    MaxCountPerStep("roll", 2),
    ConstrainChildTools("look", ("see", "hear")),
    Conditional("ask", (ConditionalOutcome(True, "see"),)),
    ContinueLoop("memory_insert"),
    ParentLastTool("open", ("read", "close")),
    RequiredBeforeExit("see"),
    RequiresApproval("pay"),
    ContinueLoop("memory_replace"),
)


def shows(system_text: str, template: str, memory: str, identity: str = IDENTITY) -> bool:
    return assembly.shows(system_text, template, memory, identity)


def memory(*blocks: Block, rules: str = "", numbered: bool = False, show_blocks: bool = True) -> str:
    core_memory = CoreMemory("agent-1", 1, blocks)
    return memory_section(core_memory, rules, numbered=numbered, show_blocks=show_blocks)


CASES = {
    "blocks_none": memory(),
    "blocks_none_numbered": memory(numbered=True),
    "blocks_one": memory(HUMAN),
    "blocks_three": memory(PERSONA, HUMAN, POLICY),
    "blocks_three_numbered": memory(PERSONA, HUMAN, POLICY, numbered=True),
    "blocks_hidden_with_rules": memory(PERSONA, rules=RulesSolver(EVERY_RULE).prompt(), show_blocks=False),
    "blocks_and_every_rule": memory(HUMAN, rules=RulesSolver(EVERY_RULE).prompt()),
    "metadata_least": NO_METADATA,
    "metadata_all": metadata_section(
        IDENTITY,
        date(2026, 1, 20),
        datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC).astimezone(ZoneInfo("America/Los_Angeles")),
        12,
        3,
        ("food", "a\nb"),
    ),
    "metadata_untagged": metadata_section(
        IDENTITY, date(2026, 12, 1), datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC), 1, 1, ()
    ),
    "composed_in_place": compose("Before {CORE_MEMORY} behind {x} {} {CORE_MEMORY}end.", memory(HUMAN), NO_METADATA),
    "composed_at_the_end": compose("You are {name}. {}", memory(PERSONA), NO_METADATA),
}


@pytest.mark.parametrize("name", CASES)
def test_text_equals_golden_file(name: str) -> None:
    assert CASES[name] == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_marker_within_memory_is_not_replaced() -> None:
    block = Block(id="block-1", label="human", value="Say {CORE_MEMORY} twice: {CORE_MEMORY}", limit=100)
    text = compose("A {CORE_MEMORY} Z", memory(block), NO_METADATA)
    assert text == f"A {memory(block)}\n\n{NO_METADATA} Z"


def test_each_section_occurs_once() -> None:
    text = compose("{CORE_MEMORY}{CORE_MEMORY}{CORE_MEMORY}", memory(HUMAN), NO_METADATA)
    assert text.count("<memory_blocks>") == text.count("<memory_metadata>") == 1


TEMPLATES = ["You are Ada.", "Head {CORE_MEMORY} tail", "{CORE_MEMORY}", "a{CORE_MEMORY}b{CORE_MEMORY}c"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_changed_metadata_alone_is_no_change(template: str) -> None:
    stored = compose(template, CASES["blocks_three"], CASES["metadata_all"])
    assert shows(stored, template, CASES["blocks_three"])
    assert shows(compose(template, CASES["blocks_three"], NO_METADATA), template, CASES["blocks_three"])


@pytest.mark.parametrize("template", TEMPLATES)
def test_changed_memory_rules_numbering_or_template_is_a_change(template: str) -> None:
    stored = compose(template, memory(HUMAN), NO_METADATA)
    for other in (memory(PERSONA), memory(HUMAN, numbered=True), memory(HUMAN, rules="x"), memory(HUMAN, HUMAN)):
        assert not shows(stored, template, other)
    assert not shows(stored, "Another " + template, memory(HUMAN))
    assert not shows("", template, memory(HUMAN))


def test_message_of_another_agent_or_conversation_is_a_change() -> None:
    stored = compose("T", memory(HUMAN), NO_METADATA)
    for agent, conversation in (("agent-2", "default"), ("agent-1", "conv-1")):
        assert not shows(stored, "T", memory(HUMAN), f"- AGENT_ID: {agent}\n- CONVERSATION_ID: {conversation}")


def test_message_of_an_earlier_release_is_no_change() -> None:
    earlier = "- The current system date is: January 05, 2026"
    stored = compose(
        "T",
        memory(HUMAN),
        NO_METADATA.replace(IDENTITY + "\n", "").replace("- System prompt last recompiled: January 05, 2026", earlier),
    )
    assert earlier in stored
    assert shows(stored, "T", memory(HUMAN))


def test_block_cannot_imitate_the_end_of_memory() -> None:
    fresh = memory(Block(id="block-1", label="human", value="", limit=10, description="plain"))
    rest = fresh.partition("plain")[2] + "\n\n" + NO_METADATA
    forged = Block(id="block-1", label="human", value="secret", limit=10, description="plain" + rest)
    stored = compose("T", memory(forged), NO_METADATA)
    assert not stored.startswith(compose("T", fresh, NO_METADATA))
    assert not shows(stored, "T", fresh)
    assert shows(stored, "T", memory(forged))


fragments = st.sampled_from(
    [
        "{CORE_MEMORY}",
        "<memory_metadata>\n",
        "\n</memory_metadata>",
        "\n</memory_blocks>",
        "\n\n",
        "- System prompt last recompiled: x",
        "a",
        NO_METADATA,
    ]
)
texts = st.lists(fragments, max_size=6).map("".join)
cores = st.lists(
    st.builds(Block, id=st.just("block-1"), label=st.just("human"), value=texts, limit=st.just(9), description=texts),
    max_size=2,
)


@given(cores, cores, texts, texts)
def test_message_shows_exactly_its_memory(stored: list[Block], fresh: list[Block], head: str, tail: str) -> None:
    template = f"{head}{{CORE_MEMORY}}{tail}"
    text = compose(template, memory(*stored), CASES["metadata_all"])
    assert shows(text, template, memory(*fresh)) is (memory(*stored) == memory(*fresh))
