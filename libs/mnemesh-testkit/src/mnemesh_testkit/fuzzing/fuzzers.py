"""The fuzzers of one service and of the mesh."""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor

from mnemesh_testkit.fuzzing import contract
from mnemesh_testkit.fuzzing.contract import (
    GARBAGE,
    hostile_request,
    methods,
    no_utf8,
    reason_of,
    spoiled,
    spoiled_once,
)
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

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
_SPOILED_EVERY: Final = 12
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
    async def read_stored(self) -> list[bytes]:
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
        before = await self.read_stored()
        for method, raw in requests:
            assert await self.send(method, raw) in codes, (method.name, raw[:200])
        assert await self.read_stored() == before

    async def _require_answered(self, method: MethodDescriptor, requests: Iterable[tuple[str, Any]]) -> None:
        before = await self.read_stored()
        for number, (where, request) in enumerate(requests, start=1):
            code = await self.send(method, request.SerializeToString())
            assert code in ACCEPTED_CODES, (method.name, where, request)
            if code is grpc.StatusCode.OK:
                before = await self.read_stored()
            elif number % self.looks_every == 0:
                assert await self.read_stored() == before, (method.name, where, request)
        assert await self.read_stored() == before, method.name


DEFECTS: Final = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""The statuses of a server that failed: no request of a client causes them."""
_STREAMED: Final = 3
"""How many responses of a stream are read before it is cancelled."""
_DESTRUCTIVE: Final = ("Delete", "Erase", "Release")

Known = Mapping[str, Sequence[str]]
GoodRequests = Callable[[MethodDescriptor, Known], Sequence[Any]]


@dataclass(slots=True)
class Defect:
    """A request that made a server fail."""

    method: str
    seed: int
    code: str
    details: str
    requests: list[bytes]

    def __str__(self) -> str:
        """Returns what is needed to send the request again."""
        raw = ", ".join(repr(each[:300]) for each in self.requests[:3])
        return f"{self.method} seed {self.seed}: {self.code} {self.details[:300]}\n    {raw}"


@dataclass(slots=True)
class Findings:
    """The results of the requests of a run."""

    codes: Counter[str] = field(default_factory=Counter)
    defects: list[Defect] = field(default_factory=list)
    slowest: tuple[float, str, int] = (0.0, "", 0)
    """The longest call in seconds, its method and its seed."""

    @property
    def requests(self) -> int:
        """How many calls were made."""
        return self.codes.total()


class MeshFuzzer:
    """Sends generated requests to every RPC of a mesh."""

    def __init__(self, addresses: Mapping[str, str], good: GoodRequests, *, seconds: float = 60.0) -> None:
        """Creates a fuzzer.

        Args:
            addresses: service → its address.
            good: returns valid requests of a method with known ids, without the ids that each request generates.
            seconds: how long a call may take before it counts as hanging.
        """
        self._addresses = addresses
        self._good = good
        self._seconds = seconds
        self._methods = list(methods())
        self.findings = Findings()

    async def run(self, seeds: Iterator[int], known: Known, *, at_once: int = 8) -> None:
        """Sends one request to a method for each seed, several at once, until the seeds end.

        Args:
            seeds: the numbers of the requests. The same seed and ids make the same request.
            known: prefix of an id → ids that exist.
            at_once: how many calls are open at the same time.
        """
        channels = {name: grpc.aio.insecure_channel(address) for name, address in self._addresses.items()}

        async def work() -> None:
            for seed in seeds:
                await self._call(channels, seed, known)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(work())
        finally:
            for channel in channels.values():
                await channel.close()

    async def codes_of(self, method: MethodDescriptor, requests: Sequence[bytes]) -> list[str]:
        """Returns the status codes of calls of a method with these serialized requests."""
        service = method.containing_service.full_name
        async with grpc.aio.insecure_channel(self._addresses[PROTO_SERVICES[service][0]]) as channel:
            outcomes = [await _outcome(channel, method, [raw], self._seconds) for raw in requests]
        return ["OK" if error is None else error.code().name for error in outcomes]

    async def _call(self, channels: Mapping[str, grpc.aio.Channel], seed: int, known: Known) -> None:
        method = self._methods[seed % len(self._methods)]
        requests = list(self.requests(method, seed, known))
        service = method.containing_service.full_name
        channel = channels[PROTO_SERVICES[service][0]]
        started = time.monotonic()
        error = await _outcome(channel, method, requests, self._seconds)
        self.findings.slowest = max(self.findings.slowest, (time.monotonic() - started, method.full_name, seed))
        if error is not None and _is_status_lost(method, error):
            self.findings.codes["LOST"] += 1
            return
        code = grpc.StatusCode.OK if error is None else error.code()
        self.findings.codes[code.name] += 1
        reason = "" if error is None else reason_of(error) or _grpc_reason(error)
        if code in DEFECTS or (error is not None and reason in ("", "UNAVAILABLE")):
            details = "" if error is None else str(error.details())
            self.findings.defects.append(Defect(f"/{service}/{method.name}", seed, code.name, details, requests))

    def requests(self, method: MethodDescriptor, seed: int, known: Known) -> Iterator[bytes]:
        """Yields the serialized requests of a call: one, or several of a stream."""
        chance = random.Random(f"{method.full_name}/{seed}")
        # What other requests are to find is not deleted.
        ids = {} if method.name.startswith(_DESTRUCTIVE) and chance.random() < 0.9 else known
        for part in range(chance.randint(1, 5) if method.client_streaming else 1):
            raw = self._request(method, seed + part * 1_000_003, ids, chance).SerializeToString()
            yield contract.mutated(raw, chance) if chance.random() < 0.25 else raw

    def _request(self, method: MethodDescriptor, seed: int, known: Known, chance: random.Random) -> Any:
        good = self._good(method, known) if chance.random() < 0.65 else ()
        if not good:
            return hostile_request(method, seed, known)
        request = chance.choice(good)
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
            spoiled_once(request, chance, known)
        return request


async def _outcome(
    channel: grpc.aio.Channel, method: MethodDescriptor, requests: Sequence[bytes], seconds: float
) -> grpc.aio.AioRpcError | None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    callable_ = getattr(channel, kind)(path, request_serializer=bytes, response_deserializer=bytes)
    call = callable_(_each(requests) if method.client_streaming else requests[0], timeout=seconds)
    try:
        if not method.server_streaming:
            await call
            return None
        for _ in range(_STREAMED):
            if await call.read() is grpc.aio.EOF:
                break
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        call.cancel()
    return None


async def _each(requests: Sequence[bytes]) -> AsyncIterator[bytes]:
    for request in requests:
        yield request


def _is_status_lost(method: MethodDescriptor, error: grpc.aio.AioRpcError) -> bool:
    """Returns whether gRPC's client lost the status of a server that ended a call before it had read all requests.

    The client ends such a call itself if one of its writes fails before it has read the status: in every eighth call,
    also of a server that does nothing but abort. A server's own INTERNAL has trailers with a reason.
    """
    return method.client_streaming and error.details() == "Internal error from Core" and not reason_of(error)


def _grpc_reason(error: grpc.aio.AioRpcError) -> str:
    """Returns a reason for a message that gRPC itself refused, before mnemesh could give one."""
    is_too_large = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in str(error.details())
    return "RESOURCE_EXHAUSTED" if is_too_large else ""
