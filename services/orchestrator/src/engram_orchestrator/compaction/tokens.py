"""Estimating tokens without asking anybody: a quarter of the bytes, and a little for each message."""

import msgspec

from engram_orchestrator.model.messages import ImagePart, Message, TextPart
from engram_orchestrator.model.models import ToolSchema

_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 12
_TOKENS_PER_IMAGE = 1_000


def text_tokens(text: str) -> int:
    """An estimate of the tokens of a text."""
    return len(text.encode()) // _BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """An estimate of the tokens that a message costs in a request, its packaging included."""
    total = _TOKENS_PER_MESSAGE
    for part in message.content:
        if isinstance(part, TextPart):
            total += text_tokens(part.text)
        elif isinstance(part, ImagePart):
            total += _TOKENS_PER_IMAGE
        else:
            total += len(msgspec.json.encode(part)) // _BYTES_PER_TOKEN
    for call in message.tool_calls:
        total += text_tokens(call.name) + text_tokens(call.arguments)
    for returned in message.tool_returns:
        total += _TOKENS_PER_MESSAGE + text_tokens(returned.text)
    return total


def schema_tokens(schema: ToolSchema) -> int:
    """An estimate of the tokens that offering a tool costs."""
    return len(msgspec.json.encode(schema)) // _BYTES_PER_TOKEN + 1


class TokenLedger:
    """Estimates by message id: a stored message is measured once. Holds the newest 50,000."""

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._known: dict[str, int] = {}

    def measure(self, messages: tuple[Message, ...]) -> int:
        """The sum over messages; the system message, which is rewritten in place, is measured anew each time."""
        known = self._known
        total = message_tokens(messages[0]) if messages else 0
        for message in messages[1:]:
            tokens = known.get(message.id)
            if tokens is None:
                tokens = known[message.id] = message_tokens(message)
            total += tokens
        while len(known) > self._size:
            del known[next(iter(known))]
        return total
