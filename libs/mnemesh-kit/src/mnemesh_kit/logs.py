"""Structured logs on stderr: one line per event, JSON by default, with the service and the correlation id."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, TextIO, cast

import msgspec
import structlog

from mnemesh_kit.config import ServerConfig
from mnemesh_kit.correlation import current_correlation_id
from mnemesh_kit.unicode import well_formed

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


def configure_logging(config: ServerConfig, service: str) -> None:
    """Configures structlog for the process, and forwards the log records of libraries to it.

    Args:
        config: the format and the lowest level that is logged. Libraries log warnings and above only.
        service: the value of the field `service` in every line.
    """
    level = _LEVELS[config.log_level]

    def identify(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service
        if "correlation_id" not in event and (correlation_id := current_correlation_id()):
            event["correlation_id"] = correlation_id
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        identify,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if config.log_format == "json":
        structlog.configure(
            processors=[*shared, structlog.processors.format_exc_info, _json],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _Unfailing(sys.stderr.buffer))),
            cache_logger_on_first_use=True,
        )
    else:
        structlog.configure(
            processors=[*shared, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="time")],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
            cache_logger_on_first_use=True,
        )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[_Forward()], force=True)


def _json(_logger: object, _method: str, event: Mapping[str, Any]) -> bytes:
    try:
        return _encode(event)
    except Exception:
        # A log line must not fail the work that it is about. Lone surrogates are the usual reason.
        return _encode({str(key): well_formed(_shown(value)) for key, value in event.items()})


def _shown(value: object) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:
        return f"({type(value).__name__} without a representation)"


class _Unfailing:
    """A stream that loses what it cannot write: the log may be on a full disk, or a pipe that no one reads."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, content: Any) -> int:
        try:
            return int(self._stream.write(content))
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _Forward(logging.Handler):
    """Forwards the log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger()
        logger.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)
