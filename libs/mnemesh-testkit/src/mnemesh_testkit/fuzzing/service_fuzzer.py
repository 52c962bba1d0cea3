"""Fuzzing of a service with stored data.

A request is executed, or refused with an error of the contract: never with INTERNAL or UNKNOWN.
A refused request changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor

from mnemesh_testkit.fuzzing.contract import hostile_request, spoiled
from mnemesh_testkit.fuzzing.wire import GARBAGE, no_utf8

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
_SPOILED_EVERY: Final = 4
"""The mesh is fuzzed with more values. Here each refusal is checked for what it changed."""
RAW: Final[Any] = {"request_serializer": bytes, "response_deserializer": bytes}


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
        await self._require_answered(method, spoiled(good, _SPOILED_EVERY))

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
