"""The sizes of windows in tokens, estimated without a call, and what of a window a compaction takes away."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import ceil
from typing import Final, Protocol

import msgspec
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.messages import ImagePart, Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest
from mnemesh_orchestrator.model.agents import Agent, Correction
from mnemesh_orchestrator.model.conversations import open_request
from mnemesh_orchestrator.model.core_memory import MemoryAccess, memory_access
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.models import ToolSchema


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A provider's figures: the bytes of UTF-8 per token, and the cost of a message and of an image."""

    bytes_per_token: float = 4.0
    per_message: int = 12
    per_image: int = 1_000

    def text(self, text: str) -> int:
        """Returns the tokens of a text."""
        return int(len(text.encode()) / self.bytes_per_token) + 1

    def message(self, message: Message, return_limit: int | None = None) -> int:
        """Returns the tokens of a message in a request, with its packaging. Returns are cut at `return_limit`."""
        total = self.per_message
        for part in message.content:
            if isinstance(part, TextPart):
                total += self.text(part.text)
            elif isinstance(part, ImagePart):
                total += self.per_image
            else:
                total += int(len(msgspec.json.encode(part)) / self.bytes_per_token)
        total += int(len(message.carried or "") / self.bytes_per_token)
        for call in message.tool_calls:
            total += self.text(call.name) + self.text(call.arguments)
        for returned in message.tool_returns:
            total += self.per_message + self.text(returned.text[:return_limit])
            total += self.per_image * sum(isinstance(part, ImagePart) for part in returned.content)
        return total

    def schema(self, schema: ToolSchema) -> int:
        """Returns the tokens of a tool schema."""
        return int(len(msgspec.json.encode(schema)) / self.bytes_per_token) + 1


_DEFAULT: Final = Tokenizer()
# The providers' own rules of thumb for English: four characters per token, and three and a half.
_TOKENIZERS: Final = {"openai": _DEFAULT, "anthropic": Tokenizer(bytes_per_token=3.5, per_image=1_600)}


def tokenizer_for(handle: str) -> Tokenizer:
    """Returns the figures of a model's provider. The default is four bytes per token."""
    return _TOKENIZERS.get(handle.partition("/")[0], _DEFAULT)


def unsent_message_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Returns the ids of messages that no provider gets: requests for approval and their answers.

    A request that does not repeat the calls of an earlier message makes them itself, and is sent.
    """
    call_ids: set[str] = set()
    unsent = []
    for message in messages:
        if message.role is Role.APPROVAL and all(call.id in call_ids for call in message.tool_calls):
            unsent.append(message.id)
        call_ids.update(call.id for call in message.tool_calls)
    return frozenset(unsent)


class TokenLedger:
    """Estimates by message id, so that a stored message is measured once. Holds the latest 50,000."""

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._known: OrderedDict[tuple[Tokenizer, int | None], dict[str, int]] = OrderedDict()

    def measure(self, messages: Sequence[Message], tokenizer: Tokenizer, return_limit: int | None = None) -> list[int]:
        """Returns the tokens of each message. The first is rewritten in place, so it is measured each time."""
        if not messages:
            return []
        known = self._known.setdefault((tokenizer, return_limit), {})
        tokens = [tokenizer.message(messages[0], return_limit)]
        for message in messages[1:]:
            if message.id not in known:
                known[message.id] = tokenizer.message(message, return_limit)
        if Role.APPROVAL in [message.role for message in messages]:
            unsent = unsent_message_ids(messages)
            tokens += [0 if message.id in unsent else known[message.id] for message in messages[1:]]
        else:
            tokens += [known[message.id] for message in messages[1:]]
        while len(known) > self._size:
            del known[next(iter(known))]
        while len(self._known) > _MAX_TABLES:
            self._known.popitem(last=False)
        return tokens


_MAX_TABLES: Final = 16

_MIN_FACTOR: Final = 0.9
_MAX_FACTOR: Final = 3.0
_WEIGHT: Final = 0.5
_MIN_ESTIMATE: Final = 200
_MAX_CORRECTIONS: Final = 4_096
_MEAN_WINDOW: Final = 100


class Corrections:
    """Corrections of estimates by agent and model, from the providers' counts.

    A factor moves halfway to each new figure, and stays between 0.9 and 3: an estimate that is too high causes an early
    compaction, one that is too low an error of the provider. The figures that an agent's record holds of earlier runs
    of any process are used if they were learned from more answers than this process has seen.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Correction] = OrderedDict()
        self._answer_count = 0
        self.mean_error = 0.0
        """Errors of this process's expectations, without sign: the mean of about the last hundred answers."""

    def of(self, agent: Agent, model: str) -> Correction:
        """Returns the correction of an agent's requests to a model."""
        own = self._known.get((agent.id, model), Correction(model))
        return max((own, *(item for item in agent.corrections if item.model == model)), key=lambda item: item.answers)

    def update(self, agent: Agent, model: str, estimated: int, reported: int) -> Correction | None:
        """Updates a correction from the counted tokens of a request with an uncorrected estimate. Returns the new one.

        Returns None for a short request, and without a count. The correction then stays.
        """
        if estimated < _MIN_ESTIMATE or reported <= 0:
            return None
        known = self.of(agent, model)
        factor = known.factor + _WEIGHT * (reported / estimated - known.factor)
        error = estimated * known.factor / reported - 1
        correction = Correction(model, min(_MAX_FACTOR, max(_MIN_FACTOR, factor)), round(error, 6), known.answers + 1)
        self._known[agent.id, model] = correction
        self._known.move_to_end((agent.id, model))
        while len(self._known) > _MAX_CORRECTIONS:
            self._known.popitem(last=False)
        self._answer_count = min(self._answer_count + 1, _MEAN_WINDOW)
        self.mean_error += (abs(error) - self.mean_error) / self._answer_count
        return correction


def schemas_tokens(schemas: Iterable[ToolSchema], tokenizer: Tokenizer) -> int:
    return sum(tokenizer.schema(schema) for schema in schemas)


@dataclass(frozen=True, slots=True)
class Measured:
    """Corrected tokens of a request: of each message, of the tools, and in total.

    `estimate` is the uncorrected total.
    """

    messages: Sequence[int]
    tools: int
    estimate: int

    @property
    def total(self) -> int:
        """The tokens of the whole request."""
        return self.tools + sum(self.messages)


class TokenEstimator:
    """Estimates the size of requests without calls. Answers correct the estimates. Models are identified by handle."""

    def __init__(self) -> None:
        self._ledger = TokenLedger()
        self._corrections = Corrections()

    def request(self, agent: Agent, request: LlmRequest) -> Measured:
        """Measures a request as it would be sent."""
        tokenizer = tokenizer_for(request.model.handle)
        messages = self._ledger.measure(request.messages, tokenizer, request.tool_return_char_limit)
        tools = schemas_tokens(request.tools, tokenizer)
        estimate = sum(messages) + tools
        factor = self._factor(agent, request.model.handle)
        if factor == 1:
            return Measured(messages, tools, estimate)
        return Measured([int(tokens * factor) for tokens in messages], int(tools * factor), estimate)

    def messages(
        self, agent: Agent, model: str, messages: Sequence[Message], return_limit: int | None = None
    ) -> list[int]:
        """Measures each message, with its returns cut at a limit."""
        tokenizer, factor = tokenizer_for(model), self._factor(agent, model)
        unsent = unsent_message_ids(messages)
        return [
            0 if message.id in unsent else int(tokenizer.message(message, return_limit) * factor)
            for message in messages
        ]

    def schemas(self, agent: Agent, model: str, schemas: Sequence[ToolSchema]) -> int:
        return int(schemas_tokens(schemas, tokenizer_for(model)) * self._factor(agent, model))

    def text(self, agent: Agent, model: str, text: str) -> int:
        return int(tokenizer_for(model).text(text) * self._factor(agent, model))

    def corrected(self, agent: Agent, model: str, estimate: int) -> int:
        """Returns the corrected value of an uncorrected estimate."""
        return int(estimate * self._factor(agent, model))

    def correction(self, agent: Agent, model: str) -> Correction:
        """Returns the correction of an agent's requests to a model, from everything that is known."""
        return self._corrections.of(agent, model)

    def update_correction(self, agent: Agent, model: str, estimate: int, reported: int | None) -> Correction | None:
        """Returns the correction after the provider counted a request with a known uncorrected estimate.

        Returns None if the correction stays.
        """
        return self._corrections.update(agent, model, estimate, reported) if reported else None

    @property
    def mean_error(self) -> float:
        """The mean error of recent expectations, as a share of the counted tokens."""
        return self._corrections.mean_error

    def _factor(self, agent: Agent, model: str) -> float:
        return self._corrections.of(agent, model).factor


SHARE_STEP: Final = 0.1
"""The additional share of the messages that each further attempt evicts."""
_MAX_TARGET_SHARE: Final = 0.5
TAIL_TURNS: Final = 4
"""The number of turns that stay before the current one if whole turns are evicted."""
_NEAR_TRIGGER: Final = 0.9

DEFAULT_SHARE: Final = 0.3
DEFAULT_CLIP_CHARS: Final = 50_000


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
class Cut:
    """The messages that leave, in order, and those that stay after the system message and the summary.

    `end` is the index after the last message that leaves. The history up to it is complete.
    """

    evicted: tuple[Message, ...]
    kept: tuple[Message, ...]
    evicted_tokens: int
    end: int


Planner = Callable[[Sequence[Message], int, Sizes, float], Cut | None]
"""Returns the cut of a window for its messages, the start of the current turn, the sizes, and the share to evict first;
None if nothing may leave. The index is one of `cuts`.
"""


def turn_start(messages: Sequence[Message], run_ids: Collection[str]) -> int:
    """Returns the index of the first message of the turn of these runs; the length of the window if it has none."""
    return next((index for index, message in enumerate(messages) if index and message.run_id in run_ids), len(messages))


def cuts(messages: Sequence[Message], end: int) -> list[int]:
    """Returns the indexes up to `end` at which a window may be cut: no call on one side has its return on the other.

    Calls that wait for a person (calls without a return, followed only by returns and requests for approval) are never
    evicted. Any other call without a return belongs to a window that recall has not repaired, and is ignored.
    """
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    request = open_request(messages)
    waiting = min(_first_waiting(messages, returned), len(messages) if request is None else request.index)
    indexes: list[int] = []
    unanswered: set[str] = set()
    for index in range(1, min(end, waiting, len(messages)) + 1):
        if index > 1 and not unanswered:
            indexes.append(index)
        if index < len(messages):
            message = messages[index]
            unanswered.difference_update(item.tool_call_id for item in message.tool_returns)
            unanswered.update(call.id for call in message.tool_calls if call.id in returned)
    return indexes


def _first_waiting(messages: Sequence[Message], returned: set[str]) -> int:
    waiting = len(messages)
    for index in range(len(messages) - 1, 0, -1):
        message = messages[index]
        if any(call.id not in returned for call in message.tool_calls):
            waiting = index
        elif message.role not in (Role.TOOL, Role.APPROVAL):
            break
    return waiting


def plan_sliding(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Cut | None:
    """Evicts the oldest share, and a tenth more at each further attempt until the rest is small enough.

    The rest is small enough at `1 - share` of the trigger (at least half of it). If no attempt reaches that, the goal
    is halfway between it and the trigger, then any size below the trigger, and finally all before the current turn is
    evicted.
    """
    indexes = _useful_cuts(messages, cuts(messages, start))
    if not indexes:
        return None
    target = (1 - min(share, _MAX_TARGET_SHARE)) * sizes.trigger
    candidates = [_first_from(indexes, 1 + round(part * (len(messages) - 1))) for part in _shares(share)]
    for goal in (target, (target + sizes.trigger) / 2, float(sizes.trigger - 1)):
        for index in candidates:
            if _remaining_tokens(sizes, index) <= goal:
                return _cut_at(messages, index, sizes)
    return _cut_at(messages, indexes[-1], sizes)


def plan_all(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Cut | None:
    """Evicts everything before the current turn."""
    del share
    indexes = _useful_cuts(messages, cuts(messages, start))
    return _cut_at(messages, indexes[-1], sizes) if indexes else None


def plan_whole_turns(messages: Sequence[Message], start: int, sizes: Sizes, share: float) -> Cut | None:
    """Evicts whole turns: all but the last four before the current one, or fewer than four if those are too many.

    They are too many if the rest would reach the trigger, or come so close that the next turn compacts again.
    """
    del share
    is_small = sizes.fixed + sum(sizes.messages) < sizes.trigger
    turn_starts = _turn_starts(messages, start)
    if is_small and len(turn_starts) <= TAIL_TURNS:
        return None
    allowed = set(_useful_cuts(messages, cuts(messages, start)))
    tails = [index for index in (*turn_starts[-TAIL_TURNS:], start) if index in allowed]
    if not tails:
        return None
    for goal in (_NEAR_TRIGGER * sizes.trigger, float(sizes.trigger - 1)):
        for index in tails:
            if _remaining_tokens(sizes, index) <= goal:
                return _cut_at(messages, index, sizes)
    return _cut_at(messages, tails[-1], sizes)


def count_turns(messages: Sequence[Message]) -> int:
    """Returns how many turns start in a range of messages."""
    return len(_turn_starts(messages, len(messages)))


def split_turns(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Returns the messages by turn. Messages before the first turn belong to it."""
    starts = [0, *_turn_starts(messages, len(messages))[1:], len(messages)]
    return [tuple(messages[start:end]) for start, end in pairwise(starts) if start < end]


def _turn_starts(messages: Sequence[Message], end: int) -> list[int]:
    """Returns the indexes at which turns start: user messages that are not events."""
    return [index for index in range(end) if messages[index].is_from_user]


def is_crowded(start: int, sizes: Sizes) -> bool:
    """Returns whether the current turn alone does not fit, even with its returns cut short."""
    return sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[start:]) > sizes.limit


def plan_within_turn(messages: Sequence[Message], start: int, sizes: Sizes) -> Cut | None:
    """Evicts everything before a turn that does not fit alone, and its oldest calls with their returns.

    The start of the turn stays, and its latest call with its returns.
    """
    body = next(
        (index for index in range(start, len(messages)) if messages[index].role not in (Role.USER, Role.SYSTEM)),
        len(messages),
    )
    head = next(reversed(cuts(messages, start)), 1)
    inside = [index for index in cuts(messages, len(messages)) if body < index < len(messages)]
    # A heartbeat alone is not a call.
    inside = [index for index in inside if any(message.role is Role.ASSISTANT for message in messages[index:])]
    fixed = sizes.messages[0] + sizes.fixed + sizes.summary + sum(sizes.clipped[head:body])
    end = next(
        (index for index in inside if fixed + sum(sizes.clipped[index:]) <= sizes.limit), inside[-1] if inside else body
    )
    evicted = (*messages[1:head], *messages[body:end])
    if all(message.role is Role.SUMMARY for message in evicted):
        return None
    tokens = sum(sizes.messages[1:head]) + sum(sizes.messages[body:end])
    return Cut(evicted, (*messages[head:body], *messages[end:]), tokens, end if end > body else head)


def _useful_cuts(messages: Sequence[Message], indexes: list[int]) -> list[int]:
    """Leaves out the indexes that would evict an earlier summary and nothing else."""
    least = 3 if len(messages) > 1 and messages[1].role is Role.SUMMARY else 2
    return [index for index in indexes if index >= least]


def _shares(first: float) -> Iterator[float]:
    share = first
    while share < 1:
        yield share
        share = round(share + SHARE_STEP, 6)
    yield 1.0


def _first_from(indexes: list[int], least: int) -> int:
    return next((index for index in indexes if index >= least), indexes[-1])


def _remaining_tokens(sizes: Sizes, index: int) -> int:
    # Few summaries use their limit. A longer one costs another attempt.
    return sizes.messages[0] + sizes.fixed + sizes.summary // 3 + sum(sizes.messages[index:])


def _cut_at(messages: Sequence[Message], index: int, sizes: Sizes) -> Cut:
    return Cut(tuple(messages[1:index]), tuple(messages[index:]), sum(sizes.messages[1:index]), index)


@dataclass(frozen=True, slots=True)
class Mode:
    """A row of the table. `planner` chooses the cut. `summarizer` is a key of the compactor's summarizers. `fallback`
    is the mode that is tried next; with `fallback_keeps_cut` it evicts the same messages.
    """

    name: str
    planner: Planner
    summarizer: str
    fallback: str | None
    trigger_ratio: float = 0.9
    fallback_keeps_cut: bool = False
    shows_memory: bool = False
    """The head of the window shows episodes and facts, also if a fallback writes the summary."""


MODES: Final[Mapping[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("sliding_window", plan_sliding, "transcript", "all"),
        Mode("all", plan_all, "transcript", None),
        Mode("self_compact_sliding_window", plan_sliding, "self", "sliding_window"),
        Mode("self_compact_all", plan_all, "self", "all"),
        Mode(
            "episodic",
            plan_whole_turns,
            "episodic",
            "sliding_window",
            trigger_ratio=0.8,
            fallback_keeps_cut=True,
            shows_memory=True,
        ),
    )
}


def mode_of(settings: CompactionSettings | None) -> Mode:
    """Returns the mode of an agent's settings. A mode that this version does not know is sliding_window."""
    return MODES.get(settings.mode if settings else "sliding_window", MODES["sliding_window"])


def fallback_chain(mode: Mode) -> tuple[Mode, ...]:
    """Returns a mode and its fallbacks in order. After the last, the digest needs no model."""
    modes = [mode]
    while (name := modes[-1].fallback) is not None:
        fallback_mode = MODES[name]
        modes.append(
            replace(fallback_mode, planner=modes[-1].planner) if modes[-1].fallback_keeps_cut else fallback_mode
        )
    return tuple(modes)


def trigger_ratio(settings: CompactionSettings | None) -> float:
    """Returns the share of a model's budget at which compaction starts."""
    if settings is not None and settings.trigger_ratio is not None:
        return settings.trigger_ratio
    return mode_of(settings).trigger_ratio


def trigger_tokens(ratio: float, budget: int) -> int:
    """Returns the number of tokens at which compaction starts: the share of a budget, rounded up.

    Without a budget, every window reaches it.
    """
    return ceil(round(ratio * max(0, budget), 6))


def effective_settings(settings: CompactionSettings | None, overrides: CompactionSettings | None) -> CompactionSettings:
    """Returns an agent's settings, overridden by those of one request. An empty mode overrides nothing."""
    settings = settings or CompactionSettings()
    if overrides is None:
        return settings
    values = {f.name: value for f in fields(overrides) if (value := getattr(overrides, f.name)) not in (None, "")}
    return replace(settings, **values)


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """One call of a summary model. `error` is what ended it; None if the model answered."""

    request: LlmRequest
    request_body: str
    response_body: str
    usage: Usage
    seconds: float
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A window that must become smaller.

    `llm_request` is the next request to the model, complete, with the window's messages at its head. `messages` are
    those, system message first. `turn_start` is the index where the current turn starts. `sizes` holds the trigger and
    the limit. The messages that leave must have at least `min_gain` tokens; None accepts any gain, for a compaction on
    demand or after the provider refused a request that the estimate allowed. `text_tokens` estimates a text,
    `request_tokens` a request.
    `organization_id` decides which summary models may be used. `on_call` receives every call of a model.
    """

    organization_id: str
    settings: CompactionSettings
    llm_request: LlmRequest
    messages: Sequence[Message]
    turn_start: int
    sizes: Sizes
    client: LlmClient
    text_tokens: Callable[[str], int]
    request_tokens: Callable[[LlmRequest], int]
    agent_id: str
    conversation_id: str
    on_call: Callable[[SummaryCall], None]
    min_gain: int | None = None
    memory_access: MemoryAccess | None = None
    """The scopes of memories; None for the agent's, without those of senders and groups."""

    @property
    def memory(self) -> MemoryAccess:
        """The scopes of memories."""
        return self.memory_access or memory_access(self.agent_id, self.settings.memory_scope, None)


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A request to summarize the messages that leave at `cut`, by `mode`, in at most `tokens` tokens."""

    compaction: CompactionRequest
    cut: Cut
    mode: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary: `window_text` is for the head of the window, `text` for display.

    `commits` are memories to store before the window is replaced.
    """

    window_text: str
    text: str
    commits: tuple[EpisodeCommit, ...] = ()


class SummaryFailed(Exception):
    """A summarizer failed. `is_down` is true if its model does not answer at all."""

    def __init__(self, message: str, *, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down


class Summarizer(Protocol):
    """One way to summarize the messages that leave a window. Has no effect."""

    async def summarize(self, request: SummaryRequest, down: set[str]) -> Summary:
        """Returns a summary of any length.

        `down` holds the handles of models that did not answer a moment ago and must not be called.

        Raises:
            SummaryFailed: there is no usable summary. `down` gains the models that did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The result of a compaction request: the messages that leave, and the summary that replaces them."""

    cut: Cut
    summary: Summary
    mode: str
    """The mode that wrote the summary, or "digest"."""
