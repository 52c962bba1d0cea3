"""Cuts of windows: for any history, the rest is valid for every provider and contains the whole current turn."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_orchestrator.compaction.planner import (
    Cut,
    Planner,
    Sizes,
    cuts,
    is_crowded,
    plan_all,
    plan_sliding,
    plan_within_turn,
    turn_start,
)
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

NOW = datetime(2026, 1, 20, tzinfo=UTC)


def message(number: int, role: Role, run: str = "old", *, calls: int = 0, returns: Sequence[str] = ()) -> Message:
    return Message(
        id=f"message-{number}",
        role=role,
        created_at=NOW,
        content=(TextPart(f"text {number}"),),
        tool_calls=tuple(ToolCall(f"call-{number}-{n}", "tool", "{}") for n in range(calls)),
        tool_returns=tuple(ToolReturn.from_text(id_, "tool", ToolStatus.SUCCESS, "done") for id_ in returns),
        run_id=run,
    )


def plain(count: int) -> list[Message]:
    """A system message and `count` messages of users and the agent."""
    roles = [Role.USER if n % 2 else Role.ASSISTANT for n in range(1, count + 1)]
    return [message(0, Role.SYSTEM), *(message(n, role) for n, role in enumerate(roles, 1))]


def sizes(messages: Sequence[Message], *, each: int = 10, trigger: int = 10**9, limit: int = 10**9) -> Sizes:
    tokens = [each] * len(messages)
    return Sizes(tokens, tokens, 0, 0, trigger, limit)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], int]:
    """Generates windows like those of the loop: turns with text, calls with returns, a summary, a pending approval."""
    window = [message(0, Role.SYSTEM)]
    number = 1
    if draw(st.booleans()):
        window.append(message(number, Role.SUMMARY))
        number += 1
    for turn in range(draw(st.integers(0, 8))):
        window.append(message(number, Role.USER, f"run-{turn}"))
        number += 1
        for _ in range(draw(st.integers(0, 4))):
            calls = draw(st.integers(1, 3))
            window.append(message(number, Role.ASSISTANT, f"run-{turn}", calls=calls))
            ids = [call.id for call in window[-1].tool_calls]
            number += 1
            split = draw(st.integers(0, calls))
            for part in (ids[:split], ids[split:]):
                if part:
                    window.append(message(number, Role.TOOL, f"run-{turn}", returns=part))
                    number += 1
        if draw(st.booleans()):
            window.append(message(number, Role.ASSISTANT, f"run-{turn}"))
            number += 1
    if draw(st.booleans()):
        window.append(message(number, Role.ASSISTANT, "last", calls=draw(st.integers(1, 2))))
    runs = sorted({item.run_id or "" for item in window[1:]})
    current = draw(st.sampled_from([*runs[-1:], "none"])) if runs else "none"
    start = turn_start(window, {current}) if current == window[-1].run_id else len(window)
    return window, start


def require_valid(window: Sequence[Message], plan: Cut, start: int) -> None:
    """Checks that nothing is lost, the order is kept, calls stay with their returns, and pending calls stay."""
    ids = [item.id for item in window[1:]]
    evicted, kept = [item.id for item in plan.evicted], [item.id for item in plan.kept]
    assert sorted(evicted + kept) == sorted(ids)
    for part in (evicted, kept):
        assert [id_ for id_ in ids if id_ in set(part)] == part, "the order is kept"
    returned = {item.tool_call_id for m in window for item in m.tool_returns}
    for side in (plan.evicted, plan.kept):
        call = {call.id for m in side for call in m.tool_calls}
        assert {item.tool_call_id for m in side for item in m.tool_returns} == call & returned
    assert all(call.id in returned for m in plan.evicted for call in m.tool_calls), "pending calls stay"
    assert any(item.role is not Role.SUMMARY for item in plan.evicted)
    assert all(item.role is not Role.SUMMARY for item in plan.kept), "an earlier summary is included in the new one"
    assert not plan.evicted or plan.end <= len(window)


@given(histories(), st.sampled_from([plan_sliding, plan_all]), st.floats(0.01, 1), st.integers(1, 500))
def test_cut_leaves_valid_window_with_whole_current_turn(
    history: tuple[list[Message], int], planner: Planner, share: float, trigger: int
) -> None:
    window, start = history
    plan = planner(window, start, sizes(window, trigger=trigger), share)
    if plan is None:
        least = 3 if len(window) > 1 and window[1].role is Role.SUMMARY else 2
        assert not [index for index in cuts(window, start) if index >= least]
        return
    require_valid(window, plan, start)
    assert plan.kept[len(plan.kept) - (len(window) - start) :] == tuple(window[start:])
    assert plan.evicted == tuple(window[1 : plan.end])


@given(histories(), st.integers(20, 300))
def test_cut_within_turn_keeps_input_and_latest_call(history: tuple[list[Message], int], limit: int) -> None:
    window, start = history
    given_sizes = sizes(window, limit=limit)
    if not is_crowded(start, given_sizes):
        return
    plan = plan_within_turn(window, start, given_sizes)
    if plan is None:
        return
    require_valid(window, plan, start)
    if start < len(window) and window[start].role is Role.USER:
        assert window[start] in plan.kept
    assert plan.kept[-1:] == (window[-1],) or window[-1] in plan.evicted
    newest = next((m for m in reversed(window) if m.role is Role.ASSISTANT), None)
    if newest is not None and newest in window[start:]:
        assert newest in plan.kept


@pytest.mark.parametrize(("share", "leaves"), [(0.2, 2), (0.3, 3), (0.5, 5), (1.0, 10), (0.01, 1)])
def test_first_attempt_evicts_the_share(share: float, leaves: int) -> None:
    window = plain(10)
    plan = plan_sliding(window, len(window), sizes(window), share)
    assert plan is not None
    assert [m.id for m in plan.evicted] == [f"message-{n}" for n in range(1, leaves + 1)]


def test_each_further_attempt_evicts_a_tenth_more() -> None:
    window = plain(10)
    for trigger, leaves in ((160, 3), (110, 4), (100, 4), (90, 5), (75, 6)):
        plan = plan_sliding(window, len(window), sizes(window, trigger=trigger), 0.3)
        assert plan is not None
        assert len(plan.evicted) == leaves, trigger


def test_everything_before_the_turn_is_evicted_if_no_attempt_suffices() -> None:
    window = [*plain(10), message(11, Role.USER, "now")]
    plan = plan_sliding(window, 11, sizes(window, trigger=5), 0.3)
    assert plan is not None
    assert [m.id for m in plan.kept] == ["message-11"]


def test_pending_request_is_never_evicted() -> None:
    window = [*plain(4), message(5, Role.ASSISTANT, calls=2), message(6, Role.APPROVAL)]
    plan = plan_all(window, len(window), sizes(window), 0.3)
    assert plan is not None
    assert [m.id for m in plan.kept] == ["message-5", "message-6"]


def test_summary_alone_is_not_summarized_again() -> None:
    window = [message(0, Role.SYSTEM), message(1, Role.SUMMARY), message(2, Role.USER, "now")]
    assert plan_all(window, 2, sizes(window), 0.3) is None
    assert plan_sliding(window, 2, sizes(window), 0.3) is None


def test_unanswered_call_in_the_middle_does_not_block_compaction() -> None:
    window = [*plain(2), message(3, Role.ASSISTANT, calls=1), message(4, Role.USER), message(5, Role.ASSISTANT)]
    plan = plan_all(window, len(window), sizes(window), 0.3)
    assert plan is not None
    assert len(plan.evicted) == 5
