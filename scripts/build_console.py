"""Builds the console from its lock file into the package of the gateway, with buf and Node.js of this environment."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "console"
TARGET = ROOT / "services" / "gateway" / "src" / "mnemesh_gateway" / "console"
MADE = {"node_modules", "gen", "dist"}


def digest() -> str:
    """Returns a digest of the sources of the page: all but the contracts, whose changes are compatible."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        name = path.relative_to(SOURCES)
        if path.is_file() and name.parts[0] not in MADE:
            found.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def main() -> None:
    """Installs the packages of the lock file, generates the code of the contracts, checks the types, and builds."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": tools}
    for command in (
        "npm ci --ignore-scripts --no-audit --no-fund --loglevel=error",
        "buf generate",
        "npm run --silent check",
        "npm run --silent build",
    ):
        result = subprocess.run(command.split(), cwd=SOURCES, env=environment, check=False)
        if result.returncode:
            sys.exit(f"mnemesh: {command} failed in console/")
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(SOURCES / "dist", TARGET)
    (TARGET / "manifest.json").write_text(json.dumps({"sources": digest()}, indent=2) + "\n")
    sizes = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    print(f"mnemesh: built the console, {sizes / 1024:.0f} kB")


if __name__ == "__main__":
    main()
