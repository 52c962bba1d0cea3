"""The log of modules that clients import, too. A client has no structlog, and configures its own logging."""

import logging
import sys
from typing import Any


class EventLog:
    """Writes events with their fields: to structlog where a process has configured it, else to the standard library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **fields: Any) -> None:
        """Writes an event that a person may want to know."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Writes an event that a person should do something about."""
        self._write(logging.WARNING, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **fields)
            return
        shown = " ".join((event, *(f"{name}={value}" for name, value in fields.items())))
        logging.getLogger(self._name).log(level, "%s", shown)
