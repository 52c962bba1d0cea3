"""Ids, clocks, settings and error texts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.call_context import set_correlation_id
from mnemesh_kit.config import ConfigError, ServerConfig, read_config
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import SequentialIds, derive_id, is_id, new_id, require_id
from mnemesh_kit.sql import SqlConfig
from mnemesh_kit.text import well_formed
from mnemesh_kit.time import FrozenClock, SystemClock
from mnemesh_kit.unicode import truncated


def test_all_ids_have_one_form() -> None:
    sequential = SequentialIds()
    ids = [new_id("agent"), new_id("agent"), derive_id("agent", "x"), sequential.new("agent"), sequential.new("agent")]
    assert len(set(ids)) == len(ids)
    for value in ids:
        assert require_id(value, "agent", "agent_id") == value


def test_derived_id_depends_on_all_of_its_parts() -> None:
    assert derive_id("conv", "a", "b") == "conv-9367e122-f52c-4747-ba50-931eb18dc2c5"
    assert len({derive_id("conv", "a", "b"), derive_id("conv", "ab"), derive_id("run", "a", "b")}) == 3


@pytest.mark.parametrize(
    "value",
    [
        "",
        "agent-",
        "agent-1",
        derive_id("block", "a test"),
        derive_id("agent", "a test").upper(),
        derive_id("agent", "a test") + "0",
    ],
)
def test_invalid_id_is_refused_with_its_field(value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        require_id(value, "agent", "agent_id")
    assert refused.value.field == "agent_id"
    assert not is_id(value, "agent")


def test_frozen_clock_moves_only_when_it_is_advanced() -> None:
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    assert clock.now() == clock.now()
    clock.advance(1.5)
    assert (clock.now() - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds() == clock.monotonic() == 1.5
    assert SystemClock().now().tzinfo is UTC


@dataclass(frozen=True, kw_only=True)
class Settings(ServerConfig):
    port: int = 1
    peers: tuple[str, ...] = ()
    eager: bool = False
    ratio: float = 0.5
    run_days: float = 90


def test_settings_come_from_the_environment() -> None:
    service = Settings.__module__.partition(".")[0].removeprefix("mnemesh_").upper()
    env = {
        "MNEMESH_PORT": "7",
        "MNEMESH_PEERS": "a:1, b:2",
        "MNEMESH_EAGER": "true",
        "MNEMESH_RATIO": "0.25",
        "MNEMESH_METRICS_PORT": "",
        "MNEMESH_LOG_LEVEL": "warning",
        f"MNEMESH_{service}_LOG_LEVEL": "debug",
    }
    settings = read_config(Settings, env)
    assert settings == Settings(port=7, peers=("a:1", "b:2"), eager=True, ratio=0.25, log_level="debug")
    assert read_config(Settings, {}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MNEMESH_PORT", "x"),
        ("MNEMESH_PORT", "-1"),
        ("MNEMESH_RATIO", "nan"),
        ("MNEMESH_RATIO", "inf"),
        ("MNEMESH_RUN_DAYS", "-1"),
        ("MNEMESH_RUN_DAYS", "36501"),
        ("MNEMESH_AUDIT_RETENTION_DAYS", "-0.5"),
        ("MNEMESH_LOG_FORMAT", "xml"),
        ("MNEMESH_EAGER", "maybe"),
    ],
)
def test_invalid_setting_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(Settings, {name: value})
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


@dataclass(frozen=True, kw_only=True)
class SettingsWithTarget(ServerConfig):
    target: str


def test_setting_without_a_default_is_required() -> None:
    with pytest.raises(ConfigError, match="MNEMESH_TARGET"):
        read_config(SettingsWithTarget, {})


@given(st.text(), st.integers(10, 50))
def test_truncated_text_fits_and_ends_with_an_ellipsis(text: str, size: int) -> None:
    result = truncated(text, size)
    assert len(result.encode(errors="replace")) <= size
    assert result == well_formed(text) or result.endswith("…")


@pytest.mark.parametrize("value", [None, "", "a b", "x" * 200, "a\nb"])
def test_correlation_id_that_could_forge_a_log_line_is_replaced(value: str | None) -> None:
    assert set_correlation_id(value) not in ("", value)
    assert set_correlation_id("run-1/2") == "run-1/2"


def test_value_is_read_from_a_file_that_the_environment_names(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@host/db\n")
    assert SqlConfig.from_env({"MNEMESH_DATABASE_URL_FILE": str(secret)}).database_url == "postgresql://u:p@host/db"
    given = {"MNEMESH_DATABASE_URL_FILE": str(secret), "MNEMESH_DATABASE_URL": "sqlite:////x"}
    assert SqlConfig.from_env(given).database_url == "sqlite:////x", "the variable itself comes first"
    with pytest.raises(ConfigError, match=r"^MNEMESH_DATABASE_URL_FILE /missing cannot be read: No such file"):
        SqlConfig.from_env({"MNEMESH_DATABASE_URL_FILE": "/missing"})
    assert SqlConfig.from_env({"MNEMESH_AUTH_KEY_FILE": "/missing"}).auth_key_file == "/missing"
