"""The directory that a tool works in where it has no private root with one."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from mnemesh_tools.sandbox.inside import plan as layer


@asynccontextmanager
async def work_directory(uid: int, layers: Collection[str]) -> AsyncIterator[str | None]:
    """A fresh directory of the tool's own, removed afterwards; None where the private root brings one."""
    if layer.PRIVATE_ROOT in layers:
        yield None
        return
    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="mnemesh-tool-")
    try:
        if layer.OWN_UID in layers:
            os.chown(directory, uid, uid)
        yield directory
    finally:
        await asyncio.shield(asyncio.to_thread(_remove, Path(directory)))


def _remove(directory: Path) -> None:
    """Removes it whatever rights the tool, which is gone by now, took from it."""
    if os.geteuid() != 0:
        directory.chmod(stat.S_IRWXU)
        for place, names, _ in os.walk(directory):
            for path in (Path(place, name) for name in names):
                if not path.is_symlink():
                    path.chmod(stat.S_IRWXU)
    shutil.rmtree(directory)
