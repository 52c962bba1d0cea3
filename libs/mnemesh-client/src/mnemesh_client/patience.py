"""How long a client repeats a call whose connection broke, or whose server restarts."""

import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Final, TypeVar

import grpc
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable
from mnemesh_kit.retries import Backoff, is_repeatable, service_descriptor

from mnemesh_client.inputs import new_request_id
from mnemesh_client.transport import Channel, sleep

T = TypeVar("T")

_BACKOFF: Final = Backoff(first=0.1, maximum=2.0)
_REPEATED_ELSEWHERE: Final = frozenset(
    {
        "/mnemesh.agents.v1.RunService/SendMessageAndWait",
        *(
            f"/mnemesh.files.v1.FileService/{name}"
            for name in ("StartUpload", "GetUpload", "FinishUpload", "ImportFile")
        ),
    }
)
"""Methods whose callers repeat them in a way of their own."""


class Patience:
    """The time for which a client repeats a call without any progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progressed()

    def progressed(self) -> None:
        """Starts the time again, because the server answered."""
        self._failures, self._since = 0, time.monotonic()

    async def wait(self, error: MnemeshError) -> None:
        """Waits before the next attempt after an error.

        Raises:
            MnemeshError: `error` itself, if the call was refused, or the time is over.
        """
        if not is_broken_connection(error) or time.monotonic() - self._since > self._seconds:
            raise error
        self._failures += 1
        await sleep(_BACKOFF.delay(self._failures))


def is_broken_connection(error: MnemeshError) -> bool:
    """Returns whether the server did not answer: it was not reached, or it stopped during the call."""
    if isinstance(error, Unavailable | DeadlineExceeded):
        return not error.final
    return (error.reason, error.code) == ("INTERNAL", grpc.StatusCode.CANCELLED)


async def patiently(call: Callable[[], Awaitable[T]], seconds: float, on_wait: Callable[[], None] | None = None) -> T:
    """Returns the result of a call that can be repeated, as soon as the server answers.

    Args:
        call: the call. A repeat has the effect of once.
        seconds: the time for which it is repeated.
        on_wait: called before the first repeat.

    Raises:
        MnemeshError: the call was refused, or the server did not answer in time.
    """
    patience, is_first = Patience(seconds), True
    while True:
        try:
            return await call()
        except MnemeshError as error:
            if is_first and is_broken_connection(error) and on_wait is not None:
                on_wait()
            is_first = False
            await patience.wait(error)


class PatientChannel:
    """A channel for generated stubs. Its calls with one response outlast a restart of the server.

    A call that may be repeated with the effect of once is repeated while the server does not answer, under the same
    `request_id`. A server that has never answered is not waited for: its address may be wrong.
    """

    def __init__(self, channel: Channel, seconds: float) -> None:
        """Wraps a channel. `seconds` is the time for which a call is repeated."""
        self._channel = channel
        self.seconds = seconds
        self.has_answered = False

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the channel."""
        return getattr(self._channel, name)

    def unary_unary(self, method: str, *options: Any, **named: Any) -> Any:
        """Returns a callable from a request to its response."""
        call = self._channel.unary_unary(method, *options, **named)
        return call if method in _REPEATED_ELSEWHERE else _PatientMethod(self, call, method)

    async def wait(self, patience: Patience, error: MnemeshError) -> None:
        """Waits before the next attempt after an error.

        Raises:
            MnemeshError: `error` itself, if the server did not stop, has never answered, or the time is over.
        """
        if not self.has_answered or not _has_stopped(error):
            raise error
        await patience.wait(error)


class _PatientMethod:
    """A method of a patient channel with one response."""

    def __init__(self, channel: PatientChannel, call: Any, method: str) -> None:
        self._channel = channel
        self._call = call
        self._method = method

    @cached_property
    def _may_repeat(self) -> bool:
        _, service, name = self._method.split("/")
        descriptor = service_descriptor(service)
        return descriptor is not None and is_repeatable(descriptor.methods_by_name[name])

    async def __call__(self, request: Any, **given: Any) -> Any:
        """Calls the method."""
        if not self._may_repeat:
            return await self._call(request, **given)
        patience, identified = Patience(self._channel.seconds), _identified(request)
        while True:
            try:
                response = await self._call(identified, **given)
            except MnemeshError as error:
                await self._channel.wait(patience, error)
            else:
                self._channel.has_answered = True
                return response


def _has_stopped(error: MnemeshError) -> bool:
    """Returns whether the server, or one behind it, is away. A slow one would be slow again."""
    return is_broken_connection(error) and error.reason in ("UNAVAILABLE", "INTERNAL")


def _identified(request: Any) -> Any:
    """Returns the request with a `request_id`, if it can have one, so that all attempts have the same."""
    if "request_id" not in request.DESCRIPTOR.fields_by_name or request.request_id:
        return request
    identified = type(request)()
    identified.CopyFrom(request)
    identified.request_id = new_request_id()
    return identified
