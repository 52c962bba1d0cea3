"""A server's stream: its events for a reply, and the requests that it refuses."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnemesh_testkit.fakes.script import Reply

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream: a document, or lines as they are, such as a comment. `name` is its `event` field."""

    data: dict[str, Any] | str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """The stream of one server.

    `type` is the provider's type in mnemesh, and `api` is "chat", "responses" or "messages". `events` returns the
    stream for a reply; the number of the answer makes its ids unique. `problem` returns the words with which the server
    refuses a request, given the replies that it has sent so far; None if it accepts it. `body` returns the answer that
    is not streamed, if the wire has one.
    """

    name: str
    type: str
    api: str
    events: Callable[[Reply, int], list[Event]]
    problem: Callable[[Body, Sequence[Reply]], str | None]
    body: Callable[[Reply, int], dict[str, Any]] | None = None


def encoded(events: Sequence[Event], line_end: str = "\n") -> bytes:
    """Returns the bytes of a stream."""
    lines = list[str]()
    for event in events:
        if isinstance(event.data, str):
            lines += event.data.split("\n")
        else:
            lines += [f"event: {event.name}"] if event.name else []
            lines += [f"data: {json.dumps(event.data, ensure_ascii=False)}", ""]
    return "".join(f"{line}{line_end}" for line in lines).encode()


def arguments_of(call: Any) -> str:
    """Returns the arguments of a reply's call as the model wrote them."""
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
