"""Fuzzing of a service with stored data.

A request is executed, or refused with an error of the contract: never with INTERNAL or UNKNOWN.
A refused request changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from mnemesh_testkit.fuzzing.contract import hostile_request, spoiled

ACCEPTED_CODES: Final = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        # Responses to a hostile but well-formed id, label, epoch or version.
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
    }
)
RAW: Final[Any] = {"request_serializer": bytes, "response_deserializer": bytes}
GARBAGE: Final = (b"\xff\xff\xff\xff", b"\x0a\xff\x01", b"\x0a\x05ab")
"""Bytes that are not a message of any type."""
_NO_UTF8: Final = b"a\xff\xfe\x80"
_DEPTH: Final = 3


class FuzzedService(ABC):
    """A service whose whole store can be read."""

    looks_every: ClassVar[int] = 10
    """The store is compared after so many refusals, and after the last one."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    @property
    @abstractmethod
    def known(self) -> Mapping[str, Sequence[str]]:
        """The existing ids by prefix."""

    @abstractmethod
    async def stored(self) -> list[bytes]:
        """Returns everything that is stored, in a fixed order."""

    async def send(self, method: MethodDescriptor, raw: bytes) -> grpc.StatusCode:
        """Sends a request as bytes and returns the status code."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        code = await self.channel.unary_unary(path, **RAW)(raw, timeout=30).code()
        assert isinstance(code, grpc.StatusCode)
        return code

    async def require_hostile_answered(self, method: MethodDescriptor, seeds: int) -> None:
        """Checks `seeds` requests with hostile values."""
        requests = ((str(seed), hostile_request(method, seed, self.known)) for seed in range(seeds))
        await self._require_answered(method, requests)

    async def require_spoiled_answered(self, method: MethodDescriptor, good: Any) -> None:
        """Checks copies of a valid request, each with one hostile value."""
        await self._require_answered(method, spoiled(good))

    async def require_bytes_refused(self, method: MethodDescriptor) -> None:
        """Checks that undecodable bytes and strings that are not UTF-8 are INVALID_ARGUMENT."""
        await self.require_refused((method, raw) for raw in (*GARBAGE, *no_utf8(method.input_type)))

    async def require_refused(
        self,
        requests: Iterable[tuple[MethodDescriptor, bytes]],
        codes: Sequence[grpc.StatusCode] = (grpc.StatusCode.INVALID_ARGUMENT,),
    ) -> None:
        """Checks that each request is refused with one of the codes, and that the store is unchanged."""
        before = await self.stored()
        for method, raw in requests:
            assert await self.send(method, raw) in codes, (method.name, raw[:200])
        assert await self.stored() == before

    async def _require_answered(self, method: MethodDescriptor, requests: Iterable[tuple[str, Any]]) -> None:
        before = await self.stored()
        for number, (where, request) in enumerate(requests, start=1):
            code = await self.send(method, request.SerializeToString())
            assert code in ACCEPTED_CODES, (method.name, where, request)
            if code is grpc.StatusCode.OK:
                before = await self.stored()
            elif number % self.looks_every == 0:
                assert await self.stored() == before, (method.name, where, request)
        assert await self.stored() == before, method.name


def no_utf8(message: Descriptor, depth: int = _DEPTH) -> Iterator[bytes]:
    """Yields one message for each string field on every level, in which that string is not UTF-8."""
    for field in message.fields:
        key = _varint(field.number << 3 | 2)
        if field.type == FieldDescriptor.TYPE_STRING:
            yield key + _varint(len(_NO_UTF8)) + _NO_UTF8
        elif (kind := field.message_type) is not None and depth:
            for inner in no_utf8(kind, depth - 1):
                yield key + _varint(len(inner)) + inner


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])
