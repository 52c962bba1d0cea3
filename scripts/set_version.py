"""Sets the version of every package, of the chart and of the lock file: python scripts/set_version.py 0.2.0.

The version of the project in the root's pyproject.toml is the one that counts; a test compares the others with it.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
VERSION: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def version_lines() -> dict[Path, re.Pattern[str]]:
    """Returns the files that contain the version, with the lines in which it stands as the only group."""
    packages = [ROOT / "pyproject.toml", *sorted(ROOT.glob("libs/*/pyproject.toml"))]
    packages += sorted(ROOT.glob("services/*/pyproject.toml"))
    chart = ROOT / "deploy/helm/mnemesh/Chart.yaml"
    return {
        **{path: re.compile(r'^version = "(.*)"$', re.MULTILINE) for path in packages},
        chart: re.compile(r"^(?:v|appV)ersion: (.*)$", re.MULTILINE),
    }


def set_version(version: str) -> None:
    """Writes the version into every file."""
    for path, line in version_lines().items():
        text = path.read_text()
        path.write_text(line.sub(lambda match: match[0].replace(match[1], version), text))


def main() -> int:
    """Returns the exit code."""
    if len(sys.argv) != 2 or not VERSION.fullmatch(sys.argv[1]):
        print("usage: python scripts/set_version.py 1.2.3", file=sys.stderr)
        return 2
    set_version(sys.argv[1])
    return subprocess.run(["uv", "lock", "--quiet"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
