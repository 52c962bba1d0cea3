"""Answers to searches, and to reads of many rows, with what all their pages have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

R = TypeVar("R", bound=Message)


async def whole_answer(
    method: Callable[..., Awaitable[R]], request: Message, *, seconds: float, field: str = "hits"
) -> R:
    """Returns the answer to a request, with what its further pages have. An answer without a token takes one call.

    Args:
        method: the method of a stub.
        request: the request, which stays as it is.
        seconds: the deadline of each call.
        field: the repeated field of the response to which the pages add.
    """
    answer: Any = await method(request, timeout=seconds)
    if not answer.next_page_token:
        return answer  # type: ignore[no-any-return]
    following: Any = type(request)()
    following.CopyFrom(request)
    while answer.next_page_token:
        following.page_token = answer.next_page_token
        page: Any = await method(following, timeout=seconds)
        getattr(answer, field).extend(getattr(page, field))
        answer.next_page_token = page.next_page_token
    return answer  # type: ignore[no-any-return]
