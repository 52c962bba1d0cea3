"""Packages that a feature needs and that are not installed with the rest: the extras of our distributions."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w., -]+)\])?\s*(?P<versions>[^;]*)")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_OURS: Final = "mnemesh-"


def install_hint(distribution: str, extra: str) -> str:
    """Returns the sentence that an error about a missing package ends with: the command that installs an extra.

    The command names the packages of the extra themselves, for the environment of this process. It is therefore the
    same in a checkout and after an installation from wheels.

    Args:
        distribution: one of ours, such as `mnemesh-files`.
        extra: the name of one of its extras, such as `s3`.
    """
    pip = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        pip = ["uv", "pip", "install", "--python", sys.executable]
    packages = sorted(set(_packages(distribution, extra)))
    return f"Install it: {shlex.join([*pip, *packages])}"


def _packages(distribution: str, extra: str) -> Iterator[str]:
    """Yields the requirements of an extra. One of ours stands for the packages of its own extras."""
    for line in metadata.requires(distribution) or ():
        needed_for = _EXTRA.search(line)
        found = _REQUIREMENT.match(line)
        if found is None or needed_for is None or needed_for[1] != extra:
            continue
        name, extras, versions = found["name"], (found["extras"] or "").split(","), found["versions"].strip()
        if name.startswith(_OURS):
            for inner in extras:
                yield from _packages(name, inner.strip())
        else:
            yield f"{name}[{found['extras']}]{versions}" if found["extras"] else f"{name}{versions}"
