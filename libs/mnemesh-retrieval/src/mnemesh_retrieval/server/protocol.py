"""What a Qdrant server understands: its settings, the features of its versions, collections, filters and records."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote
from uuid import UUID

import grpc
import httpx
import numpy as np
from mnemesh_kit.network import reason_of_failure
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from mnemesh_retrieval.engine_queries import translate_filter
from mnemesh_retrieval.errors import (
    CollectionMismatch,
    CollectionMissing,
    IndexUnavailable,
    RetrievalError,
    VectorIndexError,
)
from mnemesh_retrieval.filters import Filter, Scalar
from mnemesh_retrieval.index import Collection, Payload, Position, StoredPoint
from mnemesh_retrieval.words.analysis import CJK_RUN

OLDEST_VERSION: Final = (1, 16)
_UPDATE_MODES: Final = (1, 17)
_SUBSTRINGS: Final = (1, 20)
_RUNS_PREFIX: Final = "_cjk_"
_BETWEEN_RUNS: Final = " 0 "
"""A word between two runs, so that no phrase reaches from one into the next."""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a server.

    `update_modes`: writes of only absent or only present points. `substrings`: conditions on characters that a text
    contains. A server without these conditions gets, beside each text field, a field with the runs of CJK characters,
    each character as a word; a run is then found as a phrase.
    """

    update_modes: bool = True
    substrings: bool = True

    @classmethod
    def of(cls, version: str) -> "Features":
        """Returns the features of a version, such as `1.18.3`. Raises VectorIndexError if it is too old."""
        numbers = tuple(int(number) for number in version.split("-", maxsplit=1)[0].split(".")[:2])
        if numbers < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            raise VectorIndexError(f"the Qdrant server has version {version}; it must be {oldest} or newer")
        return cls(numbers >= _UPDATE_MODES, numbers >= _SUBSTRINGS)


def runs_field(field: str) -> str:
    """Returns the name of the field with the runs of a text field."""
    return _RUNS_PREFIX + field


def runs_as_words(text: str) -> str:
    """Returns the runs of CJK characters in a text, each character as a word."""
    return _BETWEEN_RUNS.join(" ".join(run) for run in CJK_RUN.findall(text))


def with_runs(payload: Payload, text_fields: tuple[str, ...]) -> dict[str, object]:
    texts = {name: payload[name] for name in text_fields if name in payload}
    runs = {runs_field(name): runs_as_words(text) if isinstance(text, str) else "" for name, text in texts.items()}
    return {**payload, **runs}


DENSE = "dense"
TEXT = "text"


def server_name(prefix: str, name: str) -> str:
    """Returns the name of a collection on the server, which allows fewer characters."""
    return f"{prefix}.{quote(name, safe='').replace('%', '=')}"


def own_name(prefix: str, name: str) -> str | None:
    """Returns the name of a collection from its name on the server; None if it has another prefix."""
    head = f"{prefix}."
    return unquote(name.removeprefix(head).replace("=", "%")) if name.startswith(head) else None


async def ensure(client: AsyncQdrantClient, name: str, collection: Collection, features: Features) -> None:
    """Creates a collection, or adds its missing payload indexes. Raises CollectionMismatch if the dimension differs."""
    if not await client.collection_exists(name):
        try:
            await client.create_collection(
                name,
                vectors_config={DENSE: models.VectorParams(size=collection.dimension, distance=models.Distance.COSINE)},
                sparse_vectors_config={TEXT: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            )
        except Exception:
            # Another replica may have created it first.
            if not await client.collection_exists(name):
                raise
    info = await client.get_collection(name)
    vectors = info.config.params.vectors
    stored = vectors[DENSE].size if isinstance(vectors, dict) else None
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} has vectors of {stored} numbers, not of {collection.dimension}"
        )
    for key, params in _payload_indexes(collection, features).items():
        if key not in info.payload_schema:
            await client.create_payload_index(name, key, params, wait=True)


def _payload_indexes(collection: Collection, features: Features) -> dict[str, models.PayloadSchemaParams]:
    indexes: dict[str, models.PayloadSchemaParams] = {}
    for key in collection.keyword_fields:
        tenant = key == collection.tenant_field
        # The server stores the points of one tenant together.
        indexes[key] = models.KeywordIndexParams(
            type=models.KeywordIndexType.KEYWORD, is_tenant=True if tenant else None
        )
    for key in collection.uuid_fields:
        tenant = key == collection.tenant_field
        indexes[key] = models.UuidIndexParams(type=models.UuidIndexType.UUID, is_tenant=True if tenant else None)
    for key in collection.datetime_fields:
        indexes[key] = models.DatetimeIndexParams(type=models.DatetimeIndexType.DATETIME)
    for key in collection.text_fields:
        indexes[key] = models.TextIndexParams(
            type=models.TextIndexType.TEXT, tokenizer=models.TokenizerType.WORD, lowercase=True, ascii_folding=True
        )
        if not features.substrings:
            indexes[runs_field(key)] = models.TextIndexParams(
                type=models.TextIndexType.TEXT, tokenizer=models.TokenizerType.WORD, phrase_matching=True
            )
    return indexes


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
        raise IndexUnavailable(f"{subject}: the Qdrant server cannot be reached: {reason_of_failure(error)}") from error
    except (UnexpectedResponse, ValueError) as error:
        raise VectorIndexError(f"{subject}: unexpected response of the Qdrant server: {error}") from error


def position_of(record: models.Record, field_name: str) -> Position:
    """Returns the position of a record in the order of a datetime field."""
    return Position(datetime.fromisoformat((record.payload or {})[field_name]), UUID(str(record.id)))


def stored_point(record: models.Record) -> StoredPoint:
    vector = record.vector.get(DENSE) if isinstance(record.vector, dict) else None
    return StoredPoint(
        id=UUID(str(record.id)),
        payload={name: value for name, value in (record.payload or {}).items() if not name.startswith(_RUNS_PREFIX)},
        vector=np.asarray(vector, dtype=np.float32) if vector is not None else None,
    )


def server_filter(condition: Filter, features: Features) -> models.Filter:
    """Returns a filter of a server with these features that matches the same points."""
    return models.Filter(must=[translate_filter(condition, _FilterBuilder(features))])


class _FilterBuilder:
    """See FilterBuilder."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def equals(self, field: str, value: Scalar) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchValue(value=value))

    def among(self, field: str, values: Sequence[str]) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchAny(any=list(values)))

    def words(self, field: str, text: str) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchText(text=text))

    def substring(self, field: str, text: str) -> models.Condition:
        if self._features.substrings:
            return models.FieldCondition(key=field, match=models.MatchSubstring(substring=text))
        return models.FieldCondition(key=runs_field(field), match=models.MatchPhrase(phrase=runs_as_words(text)))

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> models.Condition:
        return models.FieldCondition(key=field, range=models.DatetimeRange(gte=gte, lt=lt))

    def ids(self, ids: Sequence[UUID]) -> models.Condition:
        return models.HasIdCondition(has_id=[str(id_) for id_ in ids])

    def every(self, conditions: Sequence[models.Condition]) -> models.Condition:
        return models.Filter(must=list(conditions))

    def some(self, conditions: Sequence[models.Condition]) -> models.Condition:
        return models.Filter(should=list(conditions))

    def none(self, condition: models.Condition) -> models.Condition:
        return models.Filter(must_not=[condition])
