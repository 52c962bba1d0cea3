"""Token estimates without a call: bytes divided by a figure of the provider, corrected by its counts."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from mnemesh_types.messages import ImagePart, Message, Role, TextPart

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
        for call in message.tool_calls:
            total += self.text(call.name) + self.text(call.arguments)
        for returned in message.tool_returns:
            total += self.per_message + self.text(returned.text[:return_limit])
        return total

    def schema(self, schema: ToolSchema) -> int:
        """Returns the tokens of a tool schema."""
        return int(len(msgspec.json.encode(schema)) / self.bytes_per_token) + 1


_DEFAULT: Final = Tokenizer()
# The providers' own rules of thumb for English: four characters per token, and three and a half.
_TOKENIZERS: Final = {"openai": _DEFAULT, "anthropic": Tokenizer(bytes_per_token=3.5, per_image=1_600)}


def tokenizer(handle: str) -> Tokenizer:
    """Returns the figures of a model's provider. The default is four bytes per token."""
    return _TOKENIZERS.get(handle.partition("/")[0], _DEFAULT)


def records(messages: Sequence[Message]) -> frozenset[str]:
    """Returns the ids of messages that no provider is sent: requests for approval and their answers.

    A request that does not repeat the calls of an earlier message makes them itself, and is sent.
    """
    made: set[str] = set()
    kept = []
    for message in messages:
        if message.role is Role.APPROVAL and all(call.id in made for call in message.tool_calls):
            kept.append(message.id)
        made.update(call.id for call in message.tool_calls)
    return frozenset(kept)


class TokenLedger:
    """Estimates by message id, so that a stored message is measured once. Holds the latest 50,000."""

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._known: OrderedDict[tuple[Tokenizer, int | None], dict[str, int]] = OrderedDict()

    def measure(self, messages: Sequence[Message], by: Tokenizer, return_limit: int | None = None) -> list[int]:
        """Returns the tokens of each message. The first is rewritten in place, so it is measured each time."""
        if not messages:
            return []
        known = self._known.setdefault((by, return_limit), {})
        tokens = [by.message(messages[0], return_limit)]
        kept = records(messages) if any(message.role is Role.APPROVAL for message in messages) else frozenset[str]()
        for message in messages[1:]:
            if message.id in kept:
                tokens.append(0)
                continue
            found = known.get(message.id)
            if found is None:
                found = known[message.id] = by.message(message, return_limit)
            tokens.append(found)
        while len(known) > self._size:
            del known[next(iter(known))]
        while len(self._known) > _KEPT_KINDS:
            self._known.popitem(last=False)
        return tokens


_KEPT_KINDS: Final = 16

_LEAST_FACTOR: Final = 0.9
_MOST_FACTOR: Final = 3.0
_WEIGHT: Final = 0.5
_LEAST_MEASURED: Final = 200
_KEPT_FACTORS: Final = 4_096
_ANSWERS_IN_MEAN: Final = 100


class Corrections:
    """Corrections of estimates by agent and model, learned from the providers' counts.

    A factor moves halfway to each new figure, and stays between 0.9 and 3: an estimate that is too high causes an early
    compaction, one that is too low an error of the provider. The figures that an agent's record holds of earlier runs
    of any process are used if they were learned from more answers than this process has seen.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Correction] = OrderedDict()
        self._learnt = 0
        self.mean_error = 0.0
        """Errors of this process's expectations, without sign: the mean of about the last hundred answers."""

    def of(self, agent: Agent, model: str) -> Correction:
        """Returns the correction of an agent's requests to a model."""
        seen = self._known.get((agent.id, model), Correction(model))
        return max((seen, *(item for item in agent.corrections if item.model == model)), key=lambda item: item.answers)

    def learn(self, agent: Agent, model: str, estimated: int, reported: int) -> Correction | None:
        """Learns from the counted tokens of a request with an uncorrected estimate. Returns the new correction.

        Returns None if nothing can be learned: for a short request, or without a count.
        """
        if estimated < _LEAST_MEASURED or reported <= 0:
            return None
        known = self.of(agent, model)
        moved = known.factor + _WEIGHT * (reported / estimated - known.factor)
        error = estimated * known.factor / reported - 1
        learnt = Correction(model, min(_MOST_FACTOR, max(_LEAST_FACTOR, moved)), round(error, 6), known.answers + 1)
        self._known[agent.id, model] = learnt
        self._known.move_to_end((agent.id, model))
        while len(self._known) > _KEPT_FACTORS:
            self._known.popitem(last=False)
        self._learnt = min(self._learnt + 1, _ANSWERS_IN_MEAN)
        self.mean_error += (abs(error) - self.mean_error) / self._learnt
        return learnt


def schemas_tokens(schemas: Iterable[ToolSchema], by: Tokenizer) -> int:
    """Returns the tokens of tool schemas."""
    return sum(by.schema(schema) for schema in schemas)
