"""The order of the blocks of an answer, for APIs whose messages are lists of blocks.

A stored message holds texts, reasoning and calls in three lists. What a provider signed must return in the order in
which it came, between the same neighbours, so the order is carried: a list of kinds, and of blocks that the message
does not hold otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mnemesh_types.messages import ContentPart, ReasoningPart, TextPart

TEXT = "text"
REASONING = "reasoning"
CALL = "call"


def in_order(
    order: Sequence[object], texts: Sequence[Any], reasoning: Sequence[Any], calls: Sequence[Any]
) -> Iterator[tuple[str | None, Any, Mapping[str, Any]]]:
    """Yields the parts of a message in the order of its provider: kind, part, and the fields that it does not hold.

    Texts and calls that the order does not have follow, so that an edited message is whole. A block that is not part of
    the message has no kind, and its fields are all of it.

    Args:
        order: the carried order: kinds, objects with a `kind` and the other fields of a block, and whole blocks.
        texts: the texts of the message.
        reasoning: its reasoning.
        calls: its calls.
    """
    queues = {REASONING: list(reasoning), TEXT: list(texts), CALL: list(calls)}
    for queue in queues.values():
        queue.reverse()
    for entry in order:
        kind, fields = (entry, {}) if isinstance(entry, str) else _entry(entry)
        if kind is None:
            if fields:
                yield None, None, fields
        elif queue := queues.get(kind, []):
            yield kind, queue.pop(), fields
    if order:
        queues[REASONING] = []  # It belongs before what it led to.
    for kind, queue in queues.items():
        yield from ((kind, part, {}) for part in reversed(queue))


def carried_order(blocks: Iterable[tuple[str | None, Mapping[str, Any]]]) -> list[Any]:
    """Returns the order to carry: of each block its kind and its other fields, or all of a block without a kind.

    It is empty if the blocks are texts and then calls, as a message renders without an order.
    """
    order = [
        kind if kind is not None and not fields else {"kind": kind, "fields": dict(fields)} for kind, fields in blocks
    ]
    is_plain = all(isinstance(entry, str) and entry != REASONING for entry in order)
    return [] if is_plain and order == sorted(order, key=(TEXT, CALL).index) else order


def other_fields(block: Mapping[str, Any], held: frozenset[str]) -> dict[str, Any]:
    """Returns the fields of a block that have a value and that the message does not hold."""
    return {name: value for name, value in block.items() if name not in held and value not in (None, "", [], {})}


def ordered_texts(order: Sequence[object], content: Sequence[ContentPart]) -> list[TextPart]:
    """Returns the texts of a message, with those that are stored as reasoning.

    Where an agent speaks by a tool, the text beside a call is stored as reasoning. It returns as text, because signed
    reasoning is valid only beside it. Thoughts that the message got later stand before.
    """
    texts = [part for part in content if isinstance(part, TextPart) and part.text]
    kinds = [entry if isinstance(entry, str) else _entry(entry)[0] for entry in order]
    missing = kinds.count(TEXT) - len(texts)
    if missing <= 0:
        return texts
    spoken = [TextPart(part.text) for part in content if isinstance(part, ReasoningPart) and not part.is_native]
    return spoken[-missing:] + texts


def _entry(entry: object) -> tuple[str | None, Mapping[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(fields := entry.get("fields"), dict):
        return None, {}
    kind = entry.get("kind")
    return (kind if isinstance(kind, str) else None), fields
