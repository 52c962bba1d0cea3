"""Token counts, and what they cost."""

from dataclasses import dataclass

from mnemesh.types.v1 import message_pb2

from mnemesh_types.twin import Twin


@dataclass(frozen=True, slots=True)
class Usage(Twin[message_pb2.Usage]):
    """The tokens that a provider reported. None means that it reported nothing; zero means that it reported zero.

    `cost_nano_usd` is their cost in billionths of a US dollar; None if the price of the model is not known.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_nano_usd: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Adds field by field. A sum is None only if neither side was reported."""
        return Usage(
            _sum(self.prompt_tokens, other.prompt_tokens),
            _sum(self.completion_tokens, other.completion_tokens),
            _sum(self.total_tokens, other.total_tokens),
            _sum(self.cached_input_tokens, other.cached_input_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            _sum(self.cost_nano_usd, other.cost_nano_usd),
        )


def _sum(left: int | None, right: int | None) -> int | None:
    return left if right is None else right if left is None else left + right
