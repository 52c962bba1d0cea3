"""Log lines."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.logs import configure_logging
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared


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


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.usefixtures("configured")
async def test_trace_of_a_database_error_has_no_values(
    database: Database, log_format: Any, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    notes = sa.Table(
        "notes", sa.MetaData(), sa.Column("text", sa.Text, primary_key=True), sa.Column("size", sa.Integer)
    )
    await database.write(notes.create)
    find = Prepared(sa.select(notes).where(notes.c.text == sa.bindparam("p_text")))
    word = new_id("note")
    row = {"text": word, "size": 1}
    attempts: list[Any] = [
        lambda conn: conn.execute(notes.insert(), [row, row]),
        lambda conn: [conn.execute(notes.insert(), row) for _ in range(2)],
        lambda conn: find.all(conn, {"p_text": [word]}),
        lambda conn: conn.execute(sa.text("SELECT * FROM missing WHERE text = :text"), {"text": word}),
    ]
    configure_logging(ServerConfig(log_format=log_format), "blocks")
    for attempt in attempts:
        try:
            await database.write(attempt)
        except Exception:
            structlog.get_logger().exception("unexpected_error")
            logging.getLogger("library").exception("failed")
    shown = capsysbinary.readouterr().err.decode()
    assert shown.count("the text is withheld") >= 2 * len(attempts)
    assert word not in shown
