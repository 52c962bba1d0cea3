"""Failpoints: named moments in the production code at which a test can record, delay, raise or kill the process.

A failpoint's name has two parts, `<moment>:<subject>`:

    sql.read.before:runs.get             before a read transaction
    sql.write.before:runs.write          before a write transaction
    sql.write.before_commit:runs.write   inside the transaction, after its function has run
    sql.write.after_commit:runs.write    after the commit
    call.before:EditBlock                before an outgoing unary call
    call.after:EditBlock                 after its response has arrived
    rpc.received:EditBlock               when a call arrives, before its handler runs
    rpc.before_response:EditBlock        before the response of a unary call leaves
    run.before_event:message             before a durable event of a run leaves
    group.before_turn:dynamic            before a turn of a group run begins, and `group.after_turn`
    model.before_request:openai          before a request to a model provider
    model.response_started:openai        when the provider has begun to answer
    index.before_write:passages          before a write to a vector index, and `index.after_write`
    index.before_delete:passages         before a deletion from a vector index, and `index.after_delete`
    sandbox.before_run:roll_dice         before a tool runs in the sandbox, and `sandbox.after_run`

No observer is installed in production; a failpoint then costs one comparison.
"""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

Observer: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the name of each failpoint that is reached, in the thread and the context of the code that reaches it.

It may raise. It may return an awaitable, which is awaited at asynchronous failpoints.
"""

Subject: TypeAlias = str | Callable[..., Any]
"""A name, the path of an RPC (its last part is used), or a function (its qualified name is used)."""

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_observer: Observer | None = None


def failpoint(moment: str, subject: Subject) -> None:
    """Reports that a failpoint is reached, in synchronous code."""
    if _observer is not None:
        result = _observer(_named(moment, subject))
        if inspect.iscoroutine(result):
            result.close()  # synchronous code cannot be delayed


async def async_failpoint(moment: str, subject: Subject) -> None:
    """Reports that a failpoint is reached, and waits while the observer delays it."""
    if _observer is not None:
        result = _observer(_named(moment, subject))
        if result is not None:
            await result


def failpoint_after(fn: Callable[[Any], T], moment: str, subject: Subject) -> Callable[[Any], T]:
    """Returns `fn` with a failpoint after it; `fn` itself while no observer is installed."""
    if _observer is None:
        return fn

    @functools.wraps(fn)
    def observed(argument: Any) -> T:
        result = fn(argument)
        failpoint(moment, subject)
        return result

    return observed


def install(observer: Observer | None) -> None:
    """Installs the process's observer; None removes it."""
    global _observer  # noqa: PLW0603
    _observer = observer


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Installs an observer, and restores the previous one at the end."""
    previous = _observer
    install(observer)
    try:
        yield
    finally:
        install(previous)


def _named(moment: str, subject: Subject) -> str:
    if isinstance(subject, str):
        return f"{moment}:{subject.rpartition('/')[2]}"
    while isinstance(subject, functools.partial):
        subject = subject.func
    owner, _, name = subject.__qualname__.partition(".<locals>")[0].rpartition(".")
    return f"{moment}:{_WORD.sub('_', owner.removeprefix('Sql')).lower()}.{name}"
