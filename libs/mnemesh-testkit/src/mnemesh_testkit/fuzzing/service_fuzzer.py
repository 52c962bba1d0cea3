"""Hostile requests to a service that has something to lose.

Whatever a caller sends is refused in the words of the contract or done: never an INTERNAL or UNKNOWN, and what is
refused has changed nothing.
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
        # Of a hostile id, label, epoch or version that is well-formed.
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
    }
)
RAW: Final[Any] = {"request_serializer": bytes, "response_deserializer": bytes}
GARBAGE: Final = (b"\xff\xff\xff\xff", b"\x0a\xff\x01", b"\x0a\x05ab")
"""Bytes that are no message of any kind."""
_NO_UTF8: Final = b"a\xff\xfe\x80"
_DEPTH: Final = 3


class FuzzedService(ABC):
    """A service of which everything that it stores can be seen."""

    looks_every: ClassVar[int] = 1
    """After how many refusals it is seen whether they changed anything: more where it takes long to look."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    @property
    @abstractmethod
    def known(self) -> Mapping[str, Sequence[str]]:
        """Ids that exist, by their prefix."""

    @abstractmethod
    async def stored(self) -> list[bytes]:
        """All that can be seen of what is stored, in a fixed order."""

    async def send(self, method: MethodDescriptor, raw: bytes) -> grpc.StatusCode:
        """How the service answers these very bytes."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        code = await self.channel.unary_unary(path, **RAW)(raw, timeout=30).code()
        assert isinstance(code, grpc.StatusCode)
        return code

    async def require_hostile_answered(self, method: MethodDescriptor, seeds: int) -> None:
        """So many requests of hostile values are refused or done."""
        requests = ((str(seed), hostile_request(method, seed, self.known)) for seed in range(seeds))
        await self._require_answered(method, requests)

    async def require_spoiled_answered(self, method: MethodDescriptor, good: Any) -> None:
        """A good request with one hostile value is refused or done, whichever value that is."""
        await self._require_answered(method, spoiled(good))

    async def require_bytes_refused(self, method: MethodDescriptor) -> None:
        """Bytes that are no request, and strings anywhere in one that are no UTF-8, are the caller's mistake."""
        await self.require_refused((method, raw) for raw in (*GARBAGE, *no_utf8(method.input_type)))

    async def require_refused(
        self,
        requests: Iterable[tuple[MethodDescriptor, bytes]],
        codes: Sequence[grpc.StatusCode] = (grpc.StatusCode.INVALID_ARGUMENT,),
    ) -> None:
        """Each of these is refused so, and all together have changed nothing."""
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
    """A message for each string in it, on every level, where that string is no UTF-8."""
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
