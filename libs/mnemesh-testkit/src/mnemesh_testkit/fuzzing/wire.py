"""Mutations of serialized messages: bytes that a correct client never sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

GARBAGE: Final = (b"\xff\xff\xff\xff", b"\x0a\xff\x01", b"\x0a\x05ab")
"""Bytes that are not a message of any type."""
NO_UTF8: Final = b"a\xff\xfe\x80"
SURROGATE: Final = b"a\xed\xa0\x80"
"""A lone surrogate as three bytes, which is not UTF-8."""
_DEPTH: Final = 3

Mutation = Callable[[bytes, random.Random], bytes]


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Returns a message with one to three mutations."""
    for _ in range(chance.randint(1, 3)):
        raw = chance.choice(_MUTATIONS)(raw, chance)
    return raw


def no_utf8(message: Descriptor, depth: int = _DEPTH) -> Iterator[bytes]:
    """Yields one message for each string field on every level, in which that string is not UTF-8."""
    for field in message.fields:
        key = varint(field.number << 3 | 2)
        if field.type == FieldDescriptor.TYPE_STRING:
            yield key + varint(len(NO_UTF8)) + NO_UTF8
        elif (kind := field.message_type) is not None and depth:
            for inner in no_utf8(kind, depth - 1):
                yield key + varint(len(inner)) + inner


def varint(value: int) -> bytes:
    """Returns a number as the wire format encodes it."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _changed_byte(raw: bytes, chance: random.Random) -> bytes:
    if not raw:
        return raw
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]


def _truncated(raw: bytes, chance: random.Random) -> bytes:
    return raw[: chance.randrange(len(raw) + 1)]


def _twice(raw: bytes, _: random.Random) -> bytes:
    return raw + raw


def _with_piece(raw: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(raw) + 1)
    return raw[:place] + chance.choice(_PIECES) + raw[place:]


def _with_unknown_field(raw: bytes, chance: random.Random) -> bytes:
    number, content = chance.choice((17, 99, 1_000, 2**29 - 1)), chance.choice(_PIECES)
    return raw + varint(number << 3 | 2) + varint(len(content)) + content


def _with_foreign_type(raw: bytes, chance: random.Random) -> bytes:
    number = chance.randint(1, 20)
    return raw + chance.choice(
        (
            varint(number << 3) + varint(chance.choice((0, 1, 2**32, 2**64 - 1))),
            varint(number << 3 | 1) + chance.randbytes(8),
            varint(number << 3 | 5) + chance.randbytes(4),
            varint(number << 3 | 2) + varint(len(SURROGATE)) + SURROGATE,
            varint(number << 3 | 3) * chance.choice((1, 50, 5_000)),
        )
    )


def _nested(raw: bytes, chance: random.Random) -> bytes:
    """The message within itself, as often as parsers stop to follow."""
    for _ in range(chance.choice((1, 5, 200))):
        raw = b"\x12" + varint(len(raw)) + raw
        if len(raw) > 100_000:
            break
    return raw


_PIECES: Final = (*GARBAGE, NO_UTF8, SURROGATE, b"\0" * 20, b"\x80" * 11, b"\x0a\xff\xff\xff\xff\x0f")
_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _changed_byte,
    _changed_byte,
    _changed_byte,
    _truncated,
    _twice,
    _with_piece,
    _with_unknown_field,
    _with_foreign_type,
    _nested,
)
