"""Programs in the process of a test: a process of its own takes half a second, or one, to import them."""

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import copy_context

import pytest
import structlog
from mnemesh_cli.main import main
from mnemesh_kit import run


class _Output(io.StringIO):
    """The output of this thread. A mesh in another thread prints its log."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else len(text)


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = "", is_terminal: bool = False
) -> tuple[int, str, str]:
    """Runs the `mnemesh` command. Returns its exit code, stdout and stderr.

    The mesh must run in another thread, because the command has its own event loop.

    Args:
        arguments: of the command.
        environment: all environment variables that the command has; None are those of this process.
        stdin: what the command can read.
        is_terminal: whether stdout is a terminal.
    """
    reader, writer = os.pipe()
    os.write(writer, stdin.encode())
    os.close(writer)
    out, err = _Output(is_terminal=is_terminal), _Output()
    before = sys.argv, sys.stdin
    with os.fdopen(reader) as pipe, redirect_stdout(out), redirect_stderr(err), _environment(environment):
        sys.argv, sys.stdin = ["mnemesh", *arguments], pipe
        try:
            copy_context().run(main)  # a context of its own, as in a process
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            sys.argv, sys.stdin = before
    return code, out.getvalue(), err.getvalue()


def run_service(main: Callable[[], int], *arguments: str, environment: Mapping[str, str]) -> int:
    """Runs the `main` of a service that cannot start, or one of its commands, without a log.

    Returns its exit code. The fixture `capfd` has its output.
    """
    with pytest.MonkeyPatch.context() as patch, _environment(environment):
        patch.setattr(sys, "argv", [main.__module__, *arguments])
        patch.setattr(run, "configure_logging", _log_nothing)  # it would change the loggers of later tests
        return copy_context().run(main)


def _log_nothing(*_: object) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@contextmanager
def _environment(variables: Mapping[str, str] | None) -> Iterator[None]:
    if variables is None:
        yield
        return
    before = dict(os.environ)
    _replace_environment(variables)
    try:
        yield
    finally:
        _replace_environment(before)


def _replace_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
