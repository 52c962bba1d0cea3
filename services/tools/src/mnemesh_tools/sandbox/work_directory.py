"""The working directory of a tool that has no private root."""

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
    """Yields a new directory that belongs to the tool and removes it afterwards.

    Yields None if the layers include a private root, which contains such a directory.
    """
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
    """Removes the directory, also if the tool has revoked permissions on it. The tool must have ended."""
    if os.geteuid() != 0:
        directory.chmod(stat.S_IRWXU)
        for parent, names, _ in os.walk(directory):
            for path in (Path(parent, name) for name in names):
                if not path.is_symlink():
                    path.chmod(stat.S_IRWXU)
    shutil.rmtree(directory)
