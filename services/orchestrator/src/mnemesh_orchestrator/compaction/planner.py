"""Chooses the cut of a window. Pure functions of messages and their sizes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.prompt.packaging import event_type

STEP: Final = 0.1
"""The additional share of the messages that each further attempt evicts."""
_MOST_AIMED_AT: Final = 0.5
TAIL_TURNS: Final = 4
"""The number of turns that stay before the current one if whole turns are evicted."""
_NEAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a plan must respect, in corrected token estimates.

    `messages` are the sizes of the window's messages; `clipped` are the same with the returns of the current turn cut
    short. `fixed` is in every request (tools, input that is not in the window yet). `summary` is the limit of the
    summary. Compaction starts at `trigger`; `limit` is the limit of a request.
    """

    messages: Sequence[int]
    clipped: Sequence[int]
    fixed: int
    summary: int
    trigger: int
    limit: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages that leave, in order, and those that stay after the system message and the summary.

    `end` is the index after the last message that leaves. The history up to it is complete.
    """

    evicted: tuple[Message, ...]
    kept: tuple[Message, ...]
    evicted_tokens: int
    end: int


Planner = Callable[[Sequence[Message], int, Sizes, float], Plan | None]
"""Chooses the cut of a window from its messages, the start of the current turn, the sizes, and the share to evict
first.

Returns None if nothing may leave. The cut is one of `cuts`.
"""


def turn_start(messages: Sequence[Message], runs: Collection[str]) -> int:
    """Returns the index of the first message of the turn of these runs; the length of the window if it has none."""
    return next((place for place, message in enumerate(messages) if place and message.run_id in runs), len(messages))


def cuts(messages: Sequence[Message], end: int) -> list[int]:
    """Returns the indexes up to `end` at which a window may be cut: no call on one side has its return on the other.

    Calls that wait for a person (calls without a return, followed only by returns and requests for approval) are never
    evicted. Any other call without a return belongs to a window that recall has not repaired, and is ignored.
    """
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    request = open_request(messages)
    waiting = min(_waiting(messages, returned), len(messages) if request is None else request.place)
    found: list[int] = []
    unanswered: set[str] = set()
    for place in range(1, min(end, waiting, len(messages)) + 1):
        if place > 1 and not unanswered:
            found.append(place)
        if place < len(messages):
            message = messages[place]
            unanswered.difference_update(item.tool_call_id for item in message.tool_returns)
            unanswered.update(made.id for made in message.tool_calls if made.id in returned)
    return found


def _waiting(messages: Sequence[Message], returned: set[str]) -> int:
    waiting = len(messages)
    for place in range(len(messages) - 1, 0, -1):
        message = messages[place]
        if any(made.id not in returned for made in message.tool_calls):
            waiting = place
        elif message.role not in (Role.TOOL, Role.APPROVAL):
            break
    return waiting


def sliding(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Plan | None:
    """Evicts the oldest share, and a tenth more at each further attempt until the rest is small enough.

    The rest is small enough at `1 - share` of the trigger (at least half of it). If no attempt reaches that, the goal
    is halfway between it and the trigger, then any size below the trigger, and finally all before the current turn is
    evicted.
    """
    places = _foldable(messages, cuts(messages, start))
    if not places:
        return None
    aim = (1 - min(share, _MOST_AIMED_AT)) * sizes.trigger
    tries = [_at_least(places, 1 + round(part * (len(messages) - 1))) for part in _shares(share)]
    for goal in (aim, (aim + sizes.trigger) / 2, float(sizes.trigger - 1)):
        for place in tries:
            if _rest(sizes, place) <= goal:
                return _cut_at(messages, place, sizes)
    return _cut_at(messages, places[-1], sizes)


def whole(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Plan | None:
    """Evicts everything before the current turn."""
    del share
    places = _foldable(messages, cuts(messages, start))
    return _cut_at(messages, places[-1], sizes) if places else None


def turns(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Plan | None:
    """Evicts whole turns: all but the last four before the current one, or fewer than four if those are too many.

    They are too many if the rest would reach the trigger, or come so close that the next turn compacts again.
    """
    del share
    is_small = sizes.fixed + sum(sizes.messages) < sizes.trigger
    begun = _turn_places(messages, start)
    if is_small and len(begun) <= TAIL_TURNS:
        return None
    allowed = set(_foldable(messages, cuts(messages, start)))
    tails = [place for place in (*begun[-TAIL_TURNS:], start) if place in allowed]
    if not tails:
        return None
    for goal in (_NEAR * sizes.trigger, float(sizes.trigger - 1)):
        for place in tails:
            if _rest(sizes, place) <= goal:
                return _cut_at(messages, place, sizes)
    return _cut_at(messages, tails[-1], sizes)


def turns_in(messages: Sequence[Message]) -> int:
    """Returns how many turns start in a range of messages."""
    return len(_turn_places(messages, len(messages)))


def whole_turns(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Returns the messages by turn. Messages before the first turn belong to it."""
    starts = [0, *_turn_places(messages, len(messages))[1:], len(messages)]
    return [tuple(messages[start:end]) for start, end in pairwise(starts) if start < end]


def _turn_places(messages: Sequence[Message], end: int) -> list[int]:
    """Returns the indexes at which turns start: user messages that are not events."""
    return [
        place for place in range(end) if messages[place].role is Role.USER and event_type(messages[place].text) is None
    ]


def is_crowded(start: int, sizes: Sizes) -> bool:
    """Returns whether the current turn alone does not fit, even with its returns cut short."""
    return sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[start:]) > sizes.limit


def within_turn(messages: Sequence[Message], start: int, sizes: Sizes) -> Plan | None:
    """Evicts everything before a turn that does not fit alone, and its oldest calls with their returns.

    The start of the turn stays, and its latest call with its returns.
    """
    body = next(
        (p for p in range(start, len(messages)) if messages[p].role not in (Role.USER, Role.SYSTEM)), len(messages)
    )
    head = next(reversed(cuts(messages, start)), 1)
    inside = [place for place in cuts(messages, len(messages)) if body < place < len(messages)]
    # A heartbeat alone is not a call.
    inside = [p for p in inside if any(message.role is Role.ASSISTANT for message in messages[p:])]
    fixed = sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[head:body])
    end = next((p for p in inside if fixed + sum(sizes.clipped[p:]) <= sizes.limit), inside[-1] if inside else body)
    evicted = (*messages[1:head], *messages[body:end])
    if all(message.role is Role.SUMMARY for message in evicted):
        return None
    tokens = sum(sizes.messages[1:head]) + sum(sizes.messages[body:end])
    return Plan(evicted, (*messages[head:body], *messages[end:]), tokens, end if end > body else head)


def _foldable(messages: Sequence[Message], places: list[int]) -> list[int]:
    """Leaves out the indexes that would evict an earlier summary and nothing else."""
    least = 3 if len(messages) > 1 and messages[1].role is Role.SUMMARY else 2
    return [place for place in places if place >= least]


def _shares(first: float) -> Iterator[float]:
    share = first
    while share < 1:
        yield share
        share = round(share + STEP, 6)
    yield 1.0


def _at_least(places: list[int], wanted: int) -> int:
    return next((place for place in places if place >= wanted), places[-1])


def _rest(sizes: Sizes, place: int) -> int:
    # Few summaries use their limit. A longer one costs another attempt.
    return sizes.messages[0] + sizes.fixed + sizes.summary // 3 + sum(sizes.messages[place:])


def _cut_at(messages: Sequence[Message], place: int, sizes: Sizes) -> Plan:
    return Plan(tuple(messages[1:place]), tuple(messages[place:]), sum(sizes.messages[1:place]), place)
