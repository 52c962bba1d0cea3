"""Log lines."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.logs import configure_logging


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.fixture
def configured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("configured")
def test_lines_have_the_bound_context(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    configure_logging(ServerConfig(), "orchestrator")
    with structlog.contextvars.bound_contextvars(run_id="run-1"):
        structlog.get_logger().info("answer_interrupted")
    structlog.get_logger().info("call_finished")
    inside, outside = map(json.loads, capsysbinary.readouterr().err.splitlines())
    assert (inside["run_id"], "run_id" in outside) == ("run-1", False)


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.usefixtures("configured")
def test_log_on_a_full_disk_fails_nothing(monkeypatch: pytest.MonkeyPatch, log_format: Any) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        configure_logging(ServerConfig(log_format=log_format), "blocks")
        for _ in range(3):
            structlog.get_logger().error("disk_full", text="x" * 100_000)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


@pytest.mark.parametrize("value", ["half \ud800", {"\ud800": ["\0"]}, Unprintable(), 1 << 70])
@pytest.mark.usefixtures("configured")
def test_line_with_any_fields_is_written(value: object, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    configure_logging(ServerConfig(), "blocks")
    structlog.get_logger().error("call_failed", value=value, error="\ud800")
    [line] = capsysbinary.readouterr().err.splitlines()
    decoded = json.loads(line)
    assert (decoded["event"], decoded["service"], decoded["error"]) == ("call_failed", "blocks", "\ufffd")
