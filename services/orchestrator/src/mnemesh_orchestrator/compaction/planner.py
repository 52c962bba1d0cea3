"""Where a window is cut. Pure: messages with their sizes in, what leaves and what stays out."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.prompt.packaging import event_type

STEP: Final = 0.1
"""How much more of the messages each further try evicts."""
_MOST_AIMED_AT: Final = 0.5
TAIL_TURNS: Final = 4
"""So many turns stay in front of the current one where turns leave whole."""
_NEAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Sizes:
    """What there is to fit, in corrected estimates of tokens.

    `messages` belongs to the window's messages, `clipped` is the same with the
    returns of the current turn cut short. `fixed` is what is in every request
    besides (tools, input that is not in the window yet), `summary` what the
    summary may take at most. So many tokens as `trigger` start a compaction;
    `limit` is what a request may take at all.
    """

    messages: Sequence[int]
    clipped: Sequence[int]
    fixed: int
    summary: int
    trigger: int
    limit: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which messages leave, in order, and which stay behind the system message and the summary.

    `end` is the place in the window behind the last that leaves: the history up to it is whole.
    """

    evicted: tuple[Message, ...]
    kept: tuple[Message, ...]
    evicted_tokens: int
    end: int


Planner = Callable[[Sequence[Message], int, Sizes, float], Plan | None]
"""A way to cut a window: its messages, where the current turn begins in it, sizes, and the share to evict at first.

None where nothing may leave. What it evicts ends at one of `cuts`.
"""


def turn_start(messages: Sequence[Message], runs: Collection[str]) -> int:
    """Where the messages of the turn that these runs make begin; the length of the window where it has none yet."""
    return next((place for place, message in enumerate(messages) if place and message.run_id in runs), len(messages))


def cuts(messages: Sequence[Message], end: int) -> list[int]:
    """The places up to `end` before which a window may be cut: no call on one side has its return on the other.

    What waits for a person, calls without a return that nothing but returns and requests for approval follow, is
    never behind a cut. Any other call without a return is of a window that recall has not mended, and cuts ignore it.
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
    """Evicts the oldest share, and a tenth more at each further try until the rest is small enough.

    Small enough is `1 - share` of the trigger (at least half of it); where no try comes that far, half of the way
    from there to the trigger, then anything below the trigger; and where none does, all before the current turn goes.
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
    """Evicts whole turns: all but the last four before the current one, or fewer than four where those are too many.

    Too many are those with which the rest would reach the trigger, or so near to it that the next turn compacts
    again.
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
    """How many turns begin in a stretch of messages."""
    return len(_turn_places(messages, len(messages)))


def whole_turns(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """The messages turn by turn; what comes before the first is with it."""
    starts = [0, *_turn_places(messages, len(messages))[1:], len(messages)]
    return [tuple(messages[start:end]) for start, end in pairwise(starts) if start < end]


def _turn_places(messages: Sequence[Message], end: int) -> list[int]:
    """Where turns begin: with what a user says, but not with an event in a user's name."""
    return [
        place for place in range(end) if messages[place].role is Role.USER and event_type(messages[place].text) is None
    ]


def is_crowded(start: int, sizes: Sizes) -> bool:
    """Whether the current turn alone does not fit, even with its returns cut short."""
    return sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[start:]) > sizes.limit


def within_turn(messages: Sequence[Message], start: int, sizes: Sizes) -> Plan | None:
    """For a turn that alone does not fit: what was before it goes, and its oldest calls with their returns.

    What began the turn stays, and its newest call with its returns.
    """
    body = next(
        (p for p in range(start, len(messages)) if messages[p].role not in (Role.USER, Role.SYSTEM)), len(messages)
    )
    head = next(reversed(cuts(messages, start)), 1)
    inside = [place for place in cuts(messages, len(messages)) if body < place < len(messages)]
    # A heartbeat alone is no newest call.
    inside = [p for p in inside if any(message.role is Role.ASSISTANT for message in messages[p:])]
    fixed = sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[head:body])
    end = next((p for p in inside if fixed + sum(sizes.clipped[p:]) <= sizes.limit), inside[-1] if inside else body)
    evicted = (*messages[1:head], *messages[body:end])
    if all(message.role is Role.SUMMARY for message in evicted):
        return None
    tokens = sum(sizes.messages[1:head]) + sum(sizes.messages[body:end])
    return Plan(evicted, (*messages[head:body], *messages[end:]), tokens, end if end > body else head)


def _foldable(messages: Sequence[Message], places: list[int]) -> list[int]:
    """Without the places that would evict an earlier summary and nothing else."""
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
    # Few summaries take all that they may; the odd one that does costs a further try.
    return sizes.messages[0] + sizes.fixed + sizes.summary // 3 + sum(sizes.messages[place:])


def _cut_at(messages: Sequence[Message], place: int, sizes: Sizes) -> Plan:
    return Plan(tuple(messages[1:place]), tuple(messages[place:]), sum(sizes.messages[1:place]), place)
