"""The correlation id: one value in the log lines of every service that takes part in a call.

It travels in the metadata of each call. The `request_id` field of a request is another thing: its idempotency key.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar
from typing import Final

METADATA_KEY: Final = "mnemesh-correlation-id"
_VALID: Final = re.compile(r"[0-9A-Za-z_.:/-]{1,128}")
_current: ContextVar[str] = ContextVar("mnemesh_correlation_id", default="")


def current_correlation_id() -> str:
    """Returns the correlation id of the call being served, or "" outside of calls."""
    return _current.get()


def set_correlation_id(value: str | None = None) -> str:
    """Sets the correlation id of the current task to `value`, or to a new one if `value` is missing or not valid.

    Returns:
        The id that was set. A valid id has 1 to 128 ASCII letters, digits and `_.:/-`.
    """
    correlation_id = value if value and _VALID.fullmatch(value) else uuid.uuid4().hex
    _current.set(correlation_id)
    return correlation_id
