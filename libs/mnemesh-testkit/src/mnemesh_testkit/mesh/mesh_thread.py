"""A mesh in another thread, for tests that block: the command line, and blocking stubs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

T = TypeVar("T")


class MeshThread:
    """A mesh whose event loop runs in another thread; a context manager."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the mesh's loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=scaled(120))

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.mesh.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.mesh.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()
