"""Everything of an agent as one file: the records of ExportAgent, one JSON object per line."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2
from mnemesh_cli.agent_exports.files import from_line, to_line
from mnemesh_cli.json_lines import encode_json, line_error, parse_line, sync_directory
from mnemesh_client.inputs import present_fields
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, Unavailable
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

RECORDS: Final = "records.jsonl"
"""The name of the file in a directory."""
_SECONDS: Final = 6 * 3600.0
_BATCH_BYTES: Final = 500_000
_ATTEMPTS: Final = 5

OnCount = Callable[[int], None]
"""Receives the number of records that were moved."""


async def export_records(
    mnemesh: Mnemesh, agent_id: str, path: Path, on_count: OnCount, *, with_vectors: bool = False
) -> int:
    """Writes the records of an agent to a file, and returns their number. A crash leaves the old file or the new one.

    Args:
        mnemesh: the client.
        agent_id: the agent.
        path: the file.
        on_count: receives the progress.
        with_vectors: also write the vectors of passages.

    Raises:
        NotFound: there is no such agent.
        Unavailable: a service cannot be reached.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, count = path.with_name(f".{path.name}.new"), 0
    request = agents_service_pb2.ExportAgentRequest(agent_id=agent_id, include_vectors=with_vectors)
    with new.open("w", encoding="utf-8") as file:
        async for part in mnemesh.agents.stub.ExportAgent(request, timeout=_SECONDS):
            for record in part.records:
                file.write(f"{encode_json(to_line(record))}\n")
            count += len(part.records)
            on_count(count)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)
    return count


def count_records(path: Path) -> tuple[int, str]:
    """Checks every line of a file. Returns the number of records, and an id that the same content always has.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a record.
    """
    count, digest = 0, hashlib.sha256()
    for record in read_records(path):
        count += 1
        digest.update(record.SerializeToString(deterministic=True))
    return count, derive_id("request", "records", digest.hexdigest())


def read_records(path: Path) -> Iterator[agent_records_pb2.AgentRecord]:
    """Yields the records of a file. Raises InvalidArgument as `count_records`."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                line = parse_line(path, number, text)
                try:
                    yield from_line(line, agent_records_pb2.AgentRecord(), path.name)
                except InvalidArgument as error:
                    raise line_error(path, number, error.message) from error
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.", field=path.name) from error


async def import_records(
    mnemesh: Mnemesh, path: Path, request_id: str, on_count: OnCount, *, model: str | None = None
) -> agents_service_pb2.ImportAgentResponse:
    """Creates an agent from a file. A repeat with the same `request_id` continues an interrupted import.

    Args:
        mnemesh: the client.
        path: the file.
        request_id: identifies the import.
        on_count: receives the progress.
        model: the model of the agent; None is the exported one.

    Raises:
        InvalidArgument: the server refuses a record. Metadata: record, field.
        Unavailable: a service cannot be reached, also after several attempts.
    """
    options = agents_service_pb2.ImportOptions(request_id=request_id, keep_ids=True, **present_fields(model=model))
    for attempt in range(_ATTEMPTS):
        try:
            return await mnemesh.agents.stub.ImportAgent(_requests(path, options, on_count), timeout=_SECONDS)
        except (Unavailable, DeadlineExceeded):
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(2.0**attempt)
    raise AssertionError("the last attempt returns or raises")


def _requests(
    path: Path, options: agents_service_pb2.ImportOptions, on_count: OnCount
) -> Iterator[agents_service_pb2.ImportAgentRequest]:
    yield agents_service_pb2.ImportAgentRequest(options=options)
    batch = agents_service_pb2.ImportAgentRequest()
    count = size = 0
    for record in read_records(path):
        length = record.ByteSize()
        if batch.records and size + length > _BATCH_BYTES:
            yield batch
            on_count(count)
            batch, size = agents_service_pb2.ImportAgentRequest(), 0
        batch.records.append(record)
        size += length
        count += 1
    yield batch
    on_count(count)
