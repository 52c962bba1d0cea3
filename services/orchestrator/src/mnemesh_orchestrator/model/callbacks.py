"""Callbacks: URLs that are called when a run, or all runs of a batch, have ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument

MAX_URL: Final = 2_000
MAX_ERROR: Final = 500
MAX_CLAIMS: Final = 100
_WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 300, 1_800, 1_800))
"""The times from one attempt to the next. The first is longer than a call takes."""
MAX_ATTEMPTS: Final = len(_WAITS)


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """A URL and the result of the last call."""

    url: str
    sent_at: datetime | None = None
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that is due, and that its caller is to call. `target_id` is the id of a run or of a batch."""

    target_id: str
    organization_id: str
    subject_id: str
    url: str
    attempt: int


def next_attempt(attempt: int, now: datetime) -> datetime:
    """Returns when a callback is due again whose attempt, with a number from 1, begins now."""
    return now + _WAITS[attempt - 1]


def is_final(attempt: int, status: int | None) -> bool:
    """Returns whether a callback is not called again after the result of an attempt."""
    return attempt >= MAX_ATTEMPTS or (status is not None and status < 500)


def require_callback_url(url: str | None, field: str) -> None:
    """Raises InvalidArgument if a callback has a URL that cannot be called."""
    if url is not None and (len(url) > MAX_URL or not _is_web_url(url)):
        raise InvalidArgument(
            f"{field} must be an http or https URL of at most {MAX_URL:,} characters without credentials.", field=field
        )


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_usable and parts.username is None and url.isascii() and url.isprintable() and " " not in url
