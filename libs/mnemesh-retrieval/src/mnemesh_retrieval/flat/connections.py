"""The threads and connections of a FlatIndex's file: one thread writes, two read, and one checks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar, cast

from mnemesh_kit.sql.readahead import Readahead

from mnemesh_retrieval.damaged import move_aside
from mnemesh_retrieval.errors import IndexClosed
from mnemesh_retrieval.flat import checks, file, schema

T = TypeVar("T")
READER_THREADS: Final = 2


class Connections:
    """The connections to one file. Each thread has its own, and opens it when it first needs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vectors-writer")
        self._reading = ThreadPoolExecutor(max_workers=READER_THREADS, thread_name_prefix="vectors-reader")
        self._checking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vectors-checker")
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._readaheads = [self._new_readahead()]
        self._generation = 0
        self._dirty = False
        self._closed = False

    @property
    def readahead(self) -> Readahead:
        """That of the current file."""
        return self._readaheads[-1]

    async def read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction that only reads."""
        return await self._on(self._reading, lambda conn: file.in_transaction(conn, "BEGIN", act))

    async def check(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction that only reads, however long it takes: reads do not wait for it."""
        return await self._on(self._checking, lambda conn: file.in_transaction(conn, "BEGIN", act))

    async def write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction, after all earlier writes."""

        def write(conn: sqlite3.Connection) -> T:
            self._dirty = True
            return file.in_transaction(conn, "BEGIN IMMEDIATE", act)

        return await self._on(self._writing, write)

    async def alone(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` after all earlier writes, without a transaction."""
        return await self._on(self._writing, act)

    async def flush(self) -> None:
        """Flushes all completed writes to stable storage."""

        def flush(conn: sqlite3.Connection) -> None:
            if self._dirty:
                checks.sync(self._directory)
                conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._dirty = False

        await self._on(self._writing, flush)

    async def move_aside(self) -> Path | None:
        """Moves the file out of the way; the next write creates another. Returns the folder that it is in now."""

        def move() -> Path | None:
            self._close_own()
            try:
                return move_aside(self._directory, schema.parts(self._directory))
            finally:
                # Other threads reopen their connections before they use them again. Before the move, one could open the
                # old file as one of the new generation.
                self._generation += 1
                self._readaheads.append(self._new_readahead())

        self.require_usable()
        return await asyncio.get_running_loop().run_in_executor(self._writing, move)

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        self._closed = True
        for readers in (self._checking, self._reading):
            await asyncio.to_thread(readers.shutdown, wait=True)
        await asyncio.to_thread(self._writing.shutdown, wait=True)
        for connection in reversed(self._open):  # the writer, closed last, moves the log into the file
            connection.close()
        for readahead in self._readaheads:
            readahead.close()

    def require_usable(self) -> None:
        """Raises IndexClosed after `close`, and in a forked child."""
        if self._closed:
            raise IndexClosed("the vector index is closed")
        if os.getpid() != self._pid:
            raise IndexClosed("the vector index belongs to the parent process; a forked child cannot use it")

    async def _on(self, threads: ThreadPoolExecutor, act: Callable[[sqlite3.Connection], T]) -> T:
        self.require_usable()

        def run() -> T:
            with checks.library_errors():
                return act(self._own(threads is self._writing))

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    def _new_readahead(self) -> Readahead:
        return Readahead(self._directory / schema.NAME)

    def _own(self, writes: bool) -> sqlite3.Connection:
        """Returns the connection of this thread."""
        if getattr(self._local, "generation", None) != self._generation:
            self._close_own()
            generation = self._generation
            connection = (schema.open_writer if writes else schema.open_reader)(self._directory)
            self._local.connection, self._local.generation = connection, generation
            self._open.append(connection)
        return cast("sqlite3.Connection", self._local.connection)

    def _close_own(self) -> None:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = self._local.generation = None
            self._open.remove(connection)
            connection.close()
