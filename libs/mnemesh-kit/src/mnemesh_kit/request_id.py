"""The id that ties the log lines of one request together across services; not the idempotency `request_id` field."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar
from typing import Final

METADATA_KEY: Final = "mnemesh-request-id"
_ACCEPTED: Final = re.compile(r"[0-9A-Za-z_.:/-]{1,128}")
_current: ContextVar[str] = ContextVar("mnemesh_request_id", default="")


def current_request_id() -> str:
    """The id of the request being served, or "" outside of one."""
    return _current.get()


def set_request_id(offered: str | None = None) -> str:
    """Makes `offered`, if it is a decent id, or else a new id, the current one."""
    accepted = offered if offered and _ACCEPTED.fullmatch(offered) else uuid.uuid4().hex
    _current.set(accepted)
    return accepted
