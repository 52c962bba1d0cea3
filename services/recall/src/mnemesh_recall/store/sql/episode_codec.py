"""The conversion between episodes, facts and their rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind, Source
from mnemesh_recall.model.statements import text_key

Row = dict[str, Any]
AnyRow = sa.Row[*tuple[Any, ...]]

_encode: Final = msgspec.json.Encoder().encode
_strings: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_source: Final = msgspec.json.Decoder(Source).decode


def episode_to_row(episode: Episode, organization_id: str, owner_agent_id: str | None) -> Row:
    """Returns the columns of an episode."""
    return {
        **_shared_row(episode, organization_id, owner_agent_id),
        "summary": episode.summary,
        "turn_ids": _json(episode.turn_ids),
        "started_at": episode.started_at,
        "ended_at": episode.ended_at,
    }


def fact_to_row(fact: Fact, organization_id: str, owner_agent_id: str | None) -> Row:
    """Returns the columns of a fact."""
    return {
        **_shared_row(fact, organization_id, owner_agent_id),
        "text": fact.text,
        "text_key": text_key(fact.text),
        "confidence": fact.confidence,
        "valid_from": fact.valid_from,
        "invalid_at": fact.invalid_at,
        "first_invalid_at": fact.first_invalid_at,
        "closed_at": fact.closed_at,
        "superseded_by_id": fact.superseded_by_id,
        "supersedes_id": fact.supersedes_id,
        "invalid_reason": fact.invalid_reason,
        "invalid_source": None if fact.invalid_source is None else _source_json(fact.invalid_source),
        "chain_id": fact.chain_id,
    }


def episode_from_row(row: AnyRow) -> Episode:
    """Returns the episode of a row that selects all columns."""
    return Episode(
        **_shared(row),
        summary=row.summary,
        turn_ids=_strings(row.turn_ids),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def fact_from_row(row: AnyRow) -> Fact:
    """Returns the fact of a row that selects all columns."""
    return Fact(
        **_shared(row),
        text=row.text,
        confidence=row.confidence,
        valid_from=row.valid_from,
        invalid_at=row.invalid_at,
        first_invalid_at=row.first_invalid_at,
        closed_at=row.closed_at,
        superseded_by_id=row.superseded_by_id,
        supersedes_id=row.supersedes_id,
        invalid_reason=row.invalid_reason,
        invalid_source=None if row.invalid_source is None else _source(row.invalid_source),
        chain_id=row.chain_id,
    )


def _shared_row(memory: Episode | Fact, organization_id: str, owner_agent_id: str | None) -> Row:
    return {
        "id": memory.id,
        "organization_id": organization_id,
        "scope_kind": memory.scope.kind.value,
        "scope_id": memory.scope.id,
        "owner_agent_id": owner_agent_id,
        "imported_id": memory.imported_id,
        "tags": _json(memory.tags),
        "salience": memory.salience,
        "source": _source_json(memory.source),
        "metadata": memory.metadata,
        "extra": memory.extra,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
    }


def _shared(row: AnyRow) -> Row:
    # `metadata` is read from the mapping, because attributes of a row do not include that name.
    values = row._mapping
    return {
        "id": row.id,
        "scope": Scope(ScopeKind(row.scope_kind), row.scope_id),
        "imported_id": row.imported_id,
        "tags": _strings(row.tags),
        "salience": row.salience,
        "source": _source(row.source),
        "metadata": values["metadata"],
        "extra": row.extra,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _source_json(source: Source) -> str:
    return _encode({key: value for key, value in asdict(source).items() if value}).decode()


def _json(values: tuple[str, ...]) -> str:
    return _encode(values).decode()
