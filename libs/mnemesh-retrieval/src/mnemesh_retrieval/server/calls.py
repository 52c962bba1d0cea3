"""Calls of a Qdrant server: its settings, its errors, and its records as points."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import grpc
import httpx
import numpy as np
from qdrant_client import models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from mnemesh_retrieval.errors import CollectionMissing, IndexUnavailable, RetrievalError, VectorIndexError
from mnemesh_retrieval.index import Position, StoredPoint
from mnemesh_retrieval.server.features import without_runs
from mnemesh_retrieval.server.schema import DENSE

_UNAVAILABLE: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The address of a server and the prefix of our collections."""

    url: str
    """`http://host:6333` or `https://…`; calls use the gRPC port."""
    api_key: str = field(default="", repr=False)
    grpc_port: int = 6334
    prefix: str = "mnemesh"
    """Prefix of the names of our collections. Others are ignored."""
    timeout_seconds: int = 10
    flush_seconds: float = 10.0
    """The time after which the server has written a change to its disk. Its own default is an interval of 5 seconds."""


@asynccontextmanager
async def answered(subject: str) -> AsyncIterator[None]:
    """Raises the library's errors in place of the client's."""
    try:
        yield
    except RetrievalError:
        raise
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise CollectionMissing(f"{subject}: the collection was deleted on the server") from error
        kind = IndexUnavailable if error.code() in _UNAVAILABLE else VectorIndexError
        raise kind(f"{subject}: the Qdrant server answered {error.code().name}: {error.details()}") from error
    except (ResponseHandlingException, httpx.HTTPError, OSError) as error:
        raise IndexUnavailable(f"{subject}: the Qdrant server cannot be reached") from error
    except (UnexpectedResponse, ValueError) as error:
        raise VectorIndexError(f"{subject}: unexpected response of the Qdrant server: {error}") from error


def position_of(record: models.Record, field_name: str) -> Position:
    """Returns the position of a record in the order of a datetime field."""
    return Position(datetime.fromisoformat((record.payload or {})[field_name]), UUID(str(record.id)))


def stored_point(record: models.Record) -> StoredPoint:
    """Returns a record as a point."""
    vector = record.vector.get(DENSE) if isinstance(record.vector, dict) else None
    return StoredPoint(
        id=UUID(str(record.id)),
        payload=without_runs(record.payload or {}),
        vector=np.asarray(vector, dtype=np.float32) if vector is not None else None,
    )
