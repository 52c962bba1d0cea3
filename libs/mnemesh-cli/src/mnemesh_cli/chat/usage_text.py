"""The cost of a turn: tokens, time, and money if the price of the model is known."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import models_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.status_line import duration_text

_PRICE_UNITS_PER_DOLLAR: Final = 10**12


def usage_text(usage: message_pb2.Usage, seconds: float, price: models_pb2.ModelPrice | None) -> str:
    """Returns the tokens that the provider reported, the duration, and the cost in US dollars if it is known."""
    parts = []
    if usage.HasField("prompt_tokens") or usage.HasField("completion_tokens"):
        parts.append(f"{usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out")
    parts.append(duration_text(seconds))
    cost = _cost(usage, price)
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return " · ".join(parts)


def _cost(usage: message_pb2.Usage, price: models_pb2.ModelPrice | None) -> float | None:
    """Returns the cost in US dollars. None if the tokens or the price of a kind of token that was used is unknown."""
    if price is None or not (usage.HasField("prompt_tokens") and usage.HasField("completion_tokens")):
        return None
    cached, written = usage.cached_input_tokens, usage.cache_write_tokens  # both are part of the prompt
    kinds = (
        (max(0, usage.prompt_tokens - cached - written), price.HasField("input"), price.input),
        (cached, price.HasField("cached_input"), price.cached_input),
        (written, price.HasField("cache_write"), price.cache_write),
        (usage.completion_tokens, price.HasField("output"), price.output),
    )
    if any(count and not known for count, known, _ in kinds):
        return None
    return sum(count * each for count, _, each in kinds) / _PRICE_UNITS_PER_DOLLAR
