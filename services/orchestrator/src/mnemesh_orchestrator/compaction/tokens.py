"""Token estimates without a call: bytes divided by a figure of the provider, corrected by its counts."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from mnemesh_types.messages import ImagePart, Message, Role, TextPart

from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, Correction
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
    """Returns the tokens of tool schemas."""
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
        """Returns the tokens of tool schemas."""
        return int(schemas_tokens(schemas, tokenizer_for(model)) * self._factor(agent, model))

    def text(self, agent: Agent, model: str, text: str) -> int:
        """Returns the tokens of a text."""
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
