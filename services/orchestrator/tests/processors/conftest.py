"""An installed package with processors."""

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest
from mnemesh_testkit.fakes.fake_distributions import install

from .distribution import GROUPS, SOURCE


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of a package that is installed for a test."""
    install(tmp_path / "site", "acme_shop", SOURCE, GROUPS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    invalidate_caches()
    yield import_module("acme_shop")
    sys.modules.pop("acme_shop", None)
