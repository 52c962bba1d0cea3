"""Loading of processors: their order, and errors at startup."""

from pathlib import Path
from types import ModuleType

import pytest
from mnemesh_kit.config import ConfigError
from mnemesh_orchestrator.processors import INPUT_GROUP, TOOL_RESULT_GROUP, load
from mnemesh_testkit.fakes.fake_distributions import install

from .distribution import GROUPS, SOURCE

SETTING = "MNEMESH_INPUT_PROCESSORS"


def names(group: str, *wanted: str) -> list[str]:
    return [named.name for named in load(group, wanted, SETTING)]


def test_processors_are_sorted_by_order(shop: ModuleType) -> None:
    assert names(INPUT_GROUP, "stamp", "redact", "gate") == ["gate", "redact", "stamp"]
    assert names(INPUT_GROUP, "slow", "broken") == ["slow", "broken"], (
        "processors of equal order are in the order of the setting"
    )
    assert names(TOOL_RESULT_GROUP, "shout", "shorten") == ["shorten", "shout"]
    assert names(INPUT_GROUP) == [], "installed processors are not enabled by default"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("late", "whose order is 900. It must be below 900"),
        ("unordered", "which has no order"),
        ("blocking", "which has no awaitable process()"),
        ("unmakeable", "which cannot be created: TypeError"),
        ("gone", "which cannot be created: AttributeError"),
        (
            "shout",
            "which no installed package provides in mnemesh.input_processors (known: blocking, broken, empty, gate",
        ),
    ],
)
def test_invalid_processor_is_reported_in_one_line(shop: ModuleType, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(INPUT_GROUP, ("redact", name), SETTING)
    assert str(refused.value).startswith(f"{SETTING} names {name!r}")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_processor_cannot_be_enabled_twice(shop: ModuleType) -> None:
    with pytest.raises(ConfigError, match="names 'redact' twice"):
        load(INPUT_GROUP, ("redact", "stamp", "redact"), SETTING)


def test_name_provided_by_two_packages_is_refused(shop: ModuleType, tmp_path: Path) -> None:
    install(tmp_path / "site", "other_shop", SOURCE, GROUPS)
    with pytest.raises(ConfigError, match=r"which several packages provide: .*(acme|other)_shop:Redact"):
        load(INPUT_GROUP, ("redact",), SETTING)
