"""Answers to searches, and to reads of many rows, with what all their pages have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from mnemesh_kit.errors import Aborted

_ATTEMPTS: Final = 5
R = TypeVar("R", bound=Message)


async def whole_answer(
    method: Callable[..., Awaitable[R]], request: Message, *, seconds: float, field: str = "hits"
) -> R:
    """Returns the answer to a request, with what its further pages have. An answer without a token takes one call.

    If what the pages show has changed meanwhile, it is read again.

    Args:
        method: the method of a stub.
        request: the request, which stays as it is.
        seconds: the deadline of each call.
        field: the repeated field of the response to which the pages add, such as `context.messages`.

    Raises:
        Aborted: it changed each time.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(Aborted):
            return await _followed(method, request, seconds, attrgetter(field))
    return await _followed(method, request, seconds, attrgetter(field))


async def _followed(
    method: Callable[..., Awaitable[R]], request: Message, seconds: float, rows: Callable[[Any], Any]
) -> R:
    answer: Any = await method(request, timeout=seconds)
    if not answer.next_page_token:
        return answer  # type: ignore[no-any-return]
    following: Any = type(request)()
    following.CopyFrom(request)
    while answer.next_page_token:
        following.page_token = answer.next_page_token
        page: Any = await method(following, timeout=seconds)
        rows(answer).extend(rows(page))
        answer.next_page_token = page.next_page_token
    return answer  # type: ignore[no-any-return]
