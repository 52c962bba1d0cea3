"""The built console is that of its sources."""

import json

from mnemesh_gateway.http.console import FILES, MANIFEST

from scripts.build_console import SOURCES, digest


def test_the_build_is_that_of_the_sources() -> None:
    built = json.loads((FILES / MANIFEST).read_text())["sources"]
    assert built == digest(), "console/ has changed since the last build: run `make console`"


def test_the_lock_file_names_no_registry() -> None:
    """Packages come from the registry that npm is configured with."""
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()
    assert "http" not in (SOURCES / "package.json").read_text()
