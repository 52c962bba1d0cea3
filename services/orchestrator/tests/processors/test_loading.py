"""Which processors are found, in which order, and what is refused at start."""

from pathlib import Path
from types import ModuleType

import pytest
from mnemesh_kit.config import ConfigError
from mnemesh_orchestrator.processors.loading import INPUT_GROUP, TOOL_RESULT_GROUP, load
from mnemesh_testkit.fakes.fake_distributions import install

from .distribution import GROUPS, SOURCE

SETTING = "MNEMESH_INPUT_PROCESSORS"


def names(group: str, *wanted: str) -> list[str]:
    return [named.name for named in load(group, wanted, SETTING)]


def test_they_come_by_their_order_whatever_the_setting_says(shop: ModuleType) -> None:
    assert names(INPUT_GROUP, "stamp", "redact", "gate") == ["gate", "redact", "stamp"]
    assert names(INPUT_GROUP, "slow", "broken") == ["slow", "broken"], "those of one order as the setting has them"
    assert names(TOOL_RESULT_GROUP, "shout", "shorten") == ["shorten", "shout"]
    assert names(INPUT_GROUP) == [], "what is installed is not switched on by that"


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
def test_what_cannot_be_switched_on_is_one_line_that_names_it(shop: ModuleType, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(INPUT_GROUP, ("redact", name), SETTING)
    assert str(refused.value).startswith(f"{SETTING} names {name!r}")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_is_switched_on_twice(shop: ModuleType) -> None:
    with pytest.raises(ConfigError, match="names 'redact' twice"):
        load(INPUT_GROUP, ("redact", "stamp", "redact"), SETTING)


def test_a_name_that_two_packages_bring_is_refused(shop: ModuleType, tmp_path: Path) -> None:
    install(tmp_path / "site", "other_shop", SOURCE, GROUPS)
    with pytest.raises(ConfigError, match=r"which several packages provide: .*(acme|other)_shop:Redact"):
        load(INPUT_GROUP, ("redact",), SETTING)
