"""`mnemesh maintain`: runs the maintenance of every service while the mesh is stopped."""

import asyncio
import sys
from collections.abc import AsyncIterator

from mnemesh_cli.display.progress import step_bar
from mnemesh_cli.display.records import json_line
from mnemesh_cli.display.terminal import is_json
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor.config import (
    DataDirectoryLock,
    MeshConfig,
    mesh_config,
    service_environment,
    service_module,
)
from mnemesh_kit.config import StartupError
from mnemesh_kit.services import STORE_NAMES

_ERROR_PREFIX = "mnemesh: "


def maintain(data_dir: DataDirOption = None) -> None:
    """Purge expired data and compact the databases of a stopped mesh.

    Erased text is removed from the files on disk.
    """
    config = mesh_config(data_dir)
    if not config.data_path.is_dir():
        raise StartupError(f"There is no data directory {config.data_path}. Choose one with MNEMESH_DATA_DIR.")
    asyncio.run(_maintain_all(config))


async def _maintain_all(config: MeshConfig) -> None:
    lock = DataDirectoryLock.acquire(config.data_path)
    try:
        with step_bar(len(STORE_NAMES)) as bar:
            for name in STORE_NAMES:
                bar.begin(name)
                async for line in _maintain(name, config):
                    bar.print(json_line({"service": name, "line": line}) if is_json.get() else f"{name:12} {line}")
                bar.end()
    finally:
        lock.release()


async def _maintain(name: str, config: MeshConfig) -> AsyncIterator[str]:
    """Yields the lines of one service's report. Raises StartupError with its error line if it fails."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", service_module(name), "maintain"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=service_environment(name, config),
    )
    assert process.stdout is not None  # noqa: S101  (requested above)
    assert process.stderr is not None  # noqa: S101
    stderr = asyncio.create_task(process.stderr.read())
    try:
        async for line in process.stdout:
            yield line.decode(errors="replace").rstrip()
        code, lines = await process.wait(), (await stderr).decode(errors="replace").splitlines()
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    if code:
        errors = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)] or lines[-1:]
        raise StartupError(f"{name}: {errors[-1] if errors else f'exited with code {code}'}")
