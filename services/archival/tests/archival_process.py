"""The archival service in its own process."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path


class Process:
    """The service in its own process, on the same port after each restart."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    async def start(self) -> None:
        """Starts the service, and waits until it listens."""
        environment = {
            **os.environ,
            "MNEMESH_DATA_DIR": str(self._data_dir),
            "MNEMESH_ARCHIVAL_PORT": self.address.rpartition(":")[2] or "0",
            "MNEMESH_EMBEDDER": "mnemesh/hashing-256",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mnemesh_archival"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        line = b""
        while b"listening" not in line:
            line = await asyncio.to_thread(self.process.stdout.readline)
            assert line, "the service did not start"
        self.address = line.decode().partition('"address":"')[2].partition('"')[0]
        self._reading = asyncio.create_task(asyncio.to_thread(self.process.stdout.read))

    async def end(self, signal_: signal.Signals) -> int:
        """Sends a signal, and waits for the process to exit. Returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal_)
        await self._reading
        code = await asyncio.to_thread(self.process.wait)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
