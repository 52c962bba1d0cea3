"""`mnemesh maintain`: the maintenance of every service of a mesh that does not run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from mnemesh_kit.config import StartupError

from mnemesh_client.cli.terminal import output
from mnemesh_client.cli.up import DataDir
from mnemesh_client.supervisor.config import ROOMS, MeshConfig, module_of, service_environment
from mnemesh_client.supervisor.data_lock import DataDirectoryLock

_MARK = "mnemesh: "


def maintain(data_dir: DataDir = None) -> None:
    """Purge what has expired and rewrite the files, so that erased bytes leave the disk. The mesh must be stopped."""
    config = MeshConfig.from_env({**os.environ, **({"MNEMESH_DATA_DIR": data_dir} if data_dir else {})})
    if not config.data_path.is_dir():
        raise StartupError(f"There is no data directory {config.data_path}; choose it with MNEMESH_DATA_DIR.")
    asyncio.run(_all(config))


async def _all(config: MeshConfig) -> None:
    console, instance = output(), DataDirectoryLock.claim(config.data_path)
    try:
        for room in ROOMS:
            async for line in _of(room, config):
                console.print(f"{room:12} {line}", markup=False, highlight=False)
    finally:
        instance.release()


async def _of(room: str, config: MeshConfig) -> AsyncIterator[str]:
    """The report of one service, line by line. StartupError with what it said where it refused."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module_of(room), "maintain"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=service_environment(config),
    )
    assert process.stdout is not None  # noqa: S101  (it was asked for)
    assert process.stderr is not None  # noqa: S101
    said = asyncio.create_task(process.stderr.read())
    try:
        async for line in process.stdout:
            yield line.decode(errors="replace").rstrip()
        code, errors = await process.wait(), (await said).decode(errors="replace").splitlines()
    except BaseException:
        if process.returncode is None:  # it may have ended just before; then there is nobody to kill
            process.kill()
        await process.wait()
        raise
    if code:
        words = [line.removeprefix(_MARK) for line in errors if line.startswith(_MARK)] or errors[-1:]
        raise StartupError(f"{room}: {words[-1] if words else f'ended with exit code {code}'}")
