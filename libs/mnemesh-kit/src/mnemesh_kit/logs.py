"""Structured logs on stderr: one line per event, JSON by default, with the service and the correlation id."""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, TextIO, cast

import msgspec
import structlog

from mnemesh_kit.call_context import current_correlation_id, current_service
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.unicode import well_formed

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OF_DATABASES: Final = frozenset({"psycopg", "sqlalchemy", "sqlite3"})
_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


def configure_logging(config: ServerConfig, service: str) -> None:
    """Configures structlog for the process, and forwards the log records of libraries to it.

    Args:
        config: the format and the lowest level that is logged. Libraries log warnings and above only.
        service: the value of the field `service` in lines outside of services.
    """
    level = _LEVELS[config.log_level]

    def identify(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = current_service() or service
        if "correlation_id" not in event and (correlation_id := current_correlation_id()):
            event["correlation_id"] = correlation_id
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        identify,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        TRACES,
    ]
    if config.log_format == "json":
        structlog.configure(
            processors=[*shared, _json],
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


def _trace(exc_info: Any) -> str:
    """Returns the trace of an exception, without what databases say: that may contain the values of rows."""
    shown = traceback.TracebackException(*exc_info)
    for error, part in _chain(exc_info[1], shown):
        if type(error).__module__.partition(".")[0] in _OF_DATABASES:
            state = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None) or "no code"
            part._str = f"{state}; the text is withheld"  # type: ignore[attr-defined]
    return "".join(shown.format())


def _chain(
    error: BaseException | None, shown: traceback.TracebackException | None
) -> Iterator[tuple[BaseException, traceback.TracebackException]]:
    """Yields an exception, its causes and its parts, each with what is shown of it."""
    if error is None or shown is None:
        return
    yield error, shown
    yield from _chain(error.__cause__, shown.__cause__)
    yield from _chain(error.__context__, shown.__context__)
    for each, part in zip(getattr(error, "exceptions", ()), shown.exceptions or (), strict=False):
        yield from _chain(each, part)


TRACES: Final = structlog.processors.ExceptionRenderer(_trace)
"""Replaces the exception of a line by its trace."""


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
        message = record.getMessage()
        if record.name == "asyncio":
            message = message.partition("\n")[0]  # the rest shows objects, such as an exception with its text
        logger.log(record.levelno, message, logger=record.name, exc_info=record.exc_info)
