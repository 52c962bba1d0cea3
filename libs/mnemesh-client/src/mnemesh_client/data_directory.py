"""The mesh that `mnemesh up` runs on a data directory, whose lock file has the addresses of the services."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import Unavailable

LOCK_NAME: Final = "mnemesh.lock"


def running_addresses(directory: str | os.PathLike[str]) -> Mapping[str, str]:
    """Returns the addresses of the services by name. If the mesh was killed, they are those that it had.

    Raises:
        Unavailable: no mesh runs on the directory.
    """
    path = Path(directory).expanduser() / LOCK_NAME
    try:
        # The file is empty while no mesh runs.
        addresses = json.loads(path.read_text(encoding="utf-8"))["addresses"]
    except (OSError, ValueError, KeyError, TypeError):
        addresses = None
    if not isinstance(addresses, dict) or not addresses:
        raise Unavailable(f"No mesh runs on {directory}. Start it with `mnemesh up --data-dir {directory}`.")
    return {str(name): str(address) for name, address in addresses.items()}
