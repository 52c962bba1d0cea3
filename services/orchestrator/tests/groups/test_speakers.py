"""The answers by which a manager selects a speaker."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.groups.speakers import LastTurn, NextTurn, next_turn, selected
from mnemesh_orchestrator.model.groups import GroupPlan, ManagerConfig, ManagerType, MemberTurn, Speaker, TurnOutcome

ADA, BOB = "agent-0a1b2c3d-0000-4000-8000-000000000001", "agent-0a1b2c3d-0000-4000-8000-000000000002"
MEMBERS = (Speaker(ADA, "Ada"), Speaker(BOB, "Bob (the builder)"), Speaker("agent-3", "ada"), Speaker("agent-4", "Zoë"))
PLAN = GroupPlan("group-1", ManagerConfig(ManagerType.DYNAMIC, "agent-0"), MEMBERS, "Max")
NOBODY, SEVERAL = "The answer was not the id or the name of a member.", "The answer named several members."


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        (BOB, BOB),
        (f"  `{BOB}`.\n", BOB),
        ("Ada", ADA),
        ("ada", "agent-3"),
        ('"Ada".', ADA),
        ("**Zoë**!", "agent-4"),
        ("zoË", "agent-4"),
        ("ADA", SEVERAL),
        ("Bob (the builder)", BOB),
        ("'bob (the builder)'", BOB),
        ("Bob", NOBODY),
        ("Next is Ada", NOBODY),
        ("Max", NOBODY),
        ("agent-0", NOBODY),
        ("Ada, Zoë", SEVERAL),
        ("Zoë and Ada", SEVERAL),
        ("...", NOBODY),
        ("??", NOBODY),
        (" \n", "The answer was empty."),
        ("", "The answer was empty."),
    ],
)
def test_member_is_selected_by_exact_id_or_name(answer: str, chosen: str) -> None:
    found = selected(PLAN, (answer,), None)
    assert (found.agent_id if isinstance(found, Speaker) else found) == chosen


def test_member_whose_name_is_punctuation_is_selected_by_it() -> None:
    plan = replace(PLAN, members=(*PLAN.members, Speaker("agent-9", "??")))
    assert selected(plan, ("??",), None) == Speaker("agent-9", "??")


def test_last_speaker_is_not_selected() -> None:
    assert selected(PLAN, ("Ada",), ADA) == "Ada spoke last, and no member speaks twice in a row."
    assert selected(PLAN, ("Ada", "Ada"), BOB) == MEMBERS[0]
    assert selected(PLAN, ("Ada", "Zoë"), None) == SEVERAL


def test_turn_of_a_manager_that_failed_is_the_last() -> None:
    assert next_turn(PLAN, []) == NextTurn(1, Speaker("agent-0", "Max"), is_selection=True)
    failed = MemberTurn(1, "agent-0", TurnOutcome.FAILED, ("Ada",), is_selection=True)
    assert next_turn(PLAN, [failed]) == LastTurn()
