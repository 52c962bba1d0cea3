"""The stream of a run: prints its events, and continues after a broken connection."""

import json
import time
from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any

import connection
import grpc
from mnemesh.agents.v1 import agents_pb2, runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2

KEEPALIVE = 10  # seconds after which the server sends an event if it has no other
SILENCE = 25  # seconds without an event after which a stream is dead, even if gRPC does not say so
PATIENCE = 60  # seconds without an event after which a broken stream is not opened again
BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


class Turn:
    """Follows a run until it stops.

    Args:
        runs: the stub of RunService.
        drop_after: cancels the stream once after the event with this number, to show how a client continues.
    """

    def __init__(self, runs: Any, drop_after: int | None = None) -> None:
        self._runs = runs
        self._drop_after = drop_after
        self._run_id = ""
        self._last_sequence = 0
        self._ended = False
        self.stop_reason = ""
        self.approval_request_id = ""
        self.pending_calls: list[message_pb2.ToolCall] = []

    def follow(self, open_stream: Callable[[], Iterator[Any]]) -> "Turn":
        """Prints all events. `open_stream` sends the request; it is sent again if the run's id did not arrive."""
        failures, heard = 0, time.monotonic()
        while True:
            stream = self._resume() if self._run_id else open_stream()
            watchdog = _watch(stream)
            try:
                for response in stream:
                    failures, heard = 0, time.monotonic()
                    watchdog.cancel()
                    watchdog = _watch(stream)
                    self._receive(response.event)
                    if self._drop_after is not None and self._last_sequence >= self._drop_after:
                        self._drop_after = None
                        stream.cancel()
            except grpc.RpcError as error:
                if error.code() not in BROKEN or time.monotonic() > heard + PATIENCE:
                    raise
            finally:
                watchdog.cancel()
            if self._ended:
                return self
            if not failures:
                action = (
                    f"it continues after event {self._last_sequence}" if self._run_id else "the request is sent again"
                )
                print(f"  the stream broke; {action}")
            time.sleep(min(2, 0.1 * 2**failures))
            failures += 1

    def _resume(self) -> Iterator[Any]:
        request = runs_service_pb2.StreamRunRequest(
            run_id=self._run_id, starting_after=self._last_sequence, keepalive_seconds=KEEPALIVE
        )
        return self._runs.StreamRun(request, timeout=connection.TURN)

    def _receive(self, event: runs_pb2.RunEvent) -> None:
        self._run_id = event.run_id
        if event.HasField("sequence"):
            if event.sequence <= self._last_sequence:
                return  # It arrived before the stream broke.
            self._last_sequence = event.sequence
        match event.WhichOneof("event"):
            case "delta" if event.delta.WhichOneof("delta") == "assistant_text":
                print(f"  delta {json.dumps(event.delta.assistant_text)}")
            case "message":
                self._print_message(event.sequence, event.message)
            case "error":
                print(f"{event.sequence} error {event.error.error.reason}: {event.error.error.message}")
            case "stop":
                self.stop_reason = agents_pb2.StopReason.Name(event.stop.reason).removeprefix("STOP_REASON_")
                print(f"{event.sequence} stop {self.stop_reason}")
            case "usage":
                print(f"{event.sequence} usage {event.usage.usage.total_tokens} tokens")
                self._ended = True  # The last event of every run.

    def _print_message(self, sequence: int, message: runs_pb2.MessageEvent) -> None:
        match message.WhichOneof("message"):
            case "user":
                print(f"{sequence} user: {text(message.user.content)}")
            case "reasoning":
                print(f"{sequence} reasoning: {message.reasoning.text}")
            case "assistant":
                print(f"{sequence} assistant: {text(message.assistant.content)}")
            case "tool_call":
                for call in message.tool_call.tool_calls:
                    print(f"{sequence} tool call: {call.name} {call.arguments}")
            case "tool_return":
                for result in message.tool_return.tool_returns:
                    print(f"{sequence} tool return: {result.name}: {text(result.content)}")
            case "approval_request":
                self.approval_request_id = message.message_id
                self.pending_calls = list(message.approval_request.tool_calls)
                for call in self.pending_calls:
                    print(f"{sequence} waits for: {call.name} {call.arguments}")
            case "approval_response":
                print(f"{sequence} approval response")
            case kind:
                print(f"{sequence} {kind}")  # Later versions may add kinds.


def _watch(stream: Any) -> Timer:
    """Cancels the stream after a time, unless the timer is cancelled before."""
    timer = Timer(SILENCE, stream.cancel)
    timer.daemon = True
    timer.start()
    return timer


def text(content: Any) -> str:
    """Returns the text of the parts of a message."""
    return " ".join(part.text.text for part in content)
