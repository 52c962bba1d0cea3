"""The conversion between episodes, facts and their rows."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.ids import IdSource
from mnemesh_kit.sql.rows import Rows
from mnemesh_retrieval.words.analysis import analysed

from mnemesh_recall.errors import no_memory, no_message
from mnemesh_recall.model.episode_rules import (
    confirmed_fact,
    created_fact,
    invalidated_fact,
    replaced_fact,
    require_open,
    required_scope,
    restored_fact,
    superseded_fact,
    with_source_episode,
)
from mnemesh_recall.model.episodes import (
    AddFact,
    ConfirmFact,
    Episode,
    EpisodeCommit,
    EpisodeFilter,
    Fact,
    FactFilter,
    FactOperation,
    InvalidateFact,
    MemoryText,
    NewEpisode,
    NewFact,
    RestoreFact,
    Scope,
    ScopeKind,
    SupersedeFact,
    made_of,
)
from mnemesh_recall.model.findings import Relation, relation, text_key
from mnemesh_recall.model.writers import next_epoch
from mnemesh_recall.store import transaction, windows
from mnemesh_recall.store.fulltext.indexing import note_languages
from mnemesh_recall.store.tables import episodes, facts, memory_links, memory_terms, messages
from mnemesh_recall.store.transaction import Transaction

Row = dict[str, Any]
AnyRow = sa.Row[*tuple[Any, ...]]

_EPISODE: Final = Rows(episodes, Episode)
_FACT: Final = Rows(facts, Fact)


def memory_to_row(memory: Episode | Fact, organization_id: str, owner_agent_id: str | None) -> Row:
    """Returns the columns of an episode or a fact."""
    owner = {
        "organization_id": organization_id,
        "owner_agent_id": owner_agent_id,
        "scope_kind": memory.scope.kind.value,
        "scope_id": memory.scope.id,
    }
    if isinstance(memory, Episode):
        return _EPISODE.to_row(memory, **owner)
    return _FACT.to_row(memory, text_key=text_key(memory.text), **owner)


def episode_from_row(row: AnyRow) -> Episode:
    """Returns the episode of a row that selects all columns."""
    return _EPISODE.from_row(row, scope=Scope(ScopeKind(row.scope_kind), row.scope_id))


def fact_from_row(row: AnyRow) -> Fact:
    """Returns the fact of a row that selects all columns."""
    return _FACT.from_row(row, scope=Scope(ScopeKind(row.scope_kind), row.scope_id))


PAGE: Final = 500
"""The number of memories that a rebuild indexes in one transaction."""
TABLES: Final = {"episodes": (episodes, episodes.c.summary, "episode"), "facts": (facts, facts.c.text, "fact")}
"""The tables of memories, with the column of their text and their kind in `memory_terms`."""
_ADD: Final = sa.insert(memory_terms)


def put_words(conn: sa.Connection, organization_id: str, kind: str, scope: Scope, memory_id: str, text: str) -> None:
    """Stores the words of a memory that has none stored."""
    words, language = analysed(text)
    note_languages(conn, ((organization_id, language),))
    rows = [
        {
            "organization_id": organization_id,
            "kind": kind,
            "term": term,
            "scope_key": scope.key,
            "memory_id": memory_id,
        }
        for term in dict.fromkeys(words)
    ]
    if rows:
        conn.execute(_ADD, rows)


def remove_words(conn: sa.Connection, memory_id: str) -> None:
    """Deletes the words of a memory."""
    conn.execute(sa.delete(memory_terms).where(memory_terms.c.memory_id == memory_id))


def index_memory_page(conn: sa.Connection, name: str, after: int) -> tuple[int, int | None]:
    """Stores the words of the memories that follow a row id again.

    Returns:
        Their number, and the row id after which to continue; None if there are no more.
    """
    table, text, kind = TABLES[name]
    c = table.c
    columns = (c.row_id, c.id, c.organization_id, c.scope_kind, c.scope_id, text.label("text"))
    page = sa.select(*columns).where(c.row_id > after).order_by(c.row_id).limit(PAGE)
    rows = conn.execute(page).all()
    for row in rows:
        remove_words(conn, row.id)
        put_words(conn, row.organization_id, kind, Scope(ScopeKind(row.scope_kind), row.scope_id), row.id, row.text)
    return len(rows), rows[-1].row_id if len(rows) == PAGE else None


Condition = sa.ColumnElement[bool]
TAG, MESSAGE, TURN, EPISODE = "tag", "message", "turn", "episode"
"""The kinds of links."""

_e, _f = episodes.c, facts.c
_LINK: Final = sa.insert(memory_links)


def turn_link(agent_id: str, turn_id: str) -> str:
    """Returns the value of a link to a turn."""
    return f"{agent_id}/{turn_id}"


def owner_of(tx: Transaction, scope: Scope) -> str | None:
    """Returns the agent whose erasure deletes a scope, and creates its row if it has none.

    Raises:
        NotFound: the agent or the conversation is another organization's, or there is no such conversation.
        Erased: the agent was erased.
    """
    match scope.kind:
        case ScopeKind.AGENT:
            transaction.take_sequence_ids(tx, scope.id, 0)
            return scope.id
        case ScopeKind.CONVERSATION:
            agent_id: str = windows.read_state(tx.conn, tx.organization_id, scope.id).agent_id
            transaction.take_sequence_ids(tx, agent_id, 0)
            return agent_id
        case _:
            return None


def insert(tx: Transaction, memory: Episode | Fact, owner_agent_id: str | None) -> None:
    table = episodes if isinstance(memory, Episode) else facts
    tx.conn.execute(sa.insert(table), memory_to_row(memory, tx.organization_id, owner_agent_id))
    _put_links(tx, memory)
    _put_terms(tx, memory)
    transaction.add_memory_changes(tx.conn, [memory.id], tx.now)


def update(tx: Transaction, memory: Episode | Fact, *, text_changed: bool = False) -> None:
    """Updates the row of an episode or a fact. `text_changed` also updates the indexes of its text."""
    table = episodes if isinstance(memory, Episode) else facts
    row = memory_to_row(memory, tx.organization_id, None)
    del row["owner_agent_id"]
    tx.conn.execute(sa.update(table).where(table.c.id == memory.id).values(row))
    tx.conn.execute(sa.delete(memory_links).where(memory_links.c.memory_id == memory.id))
    _put_links(tx, memory)
    if text_changed:
        remove_words(tx.conn, memory.id)
        _put_terms(tx, memory)
        transaction.add_memory_changes(tx.conn, [memory.id], tx.now)


def read_episode(conn: sa.Connection, organization_id: str, episode_id: str) -> Episode:
    """Returns an episode. Raises NotFound."""
    found = conn.execute(sa.select(episodes).where(_e.id == episode_id, _e.organization_id == organization_id)).first()
    if found is None:
        raise no_memory("episode", episode_id)
    return episode_from_row(found)


def read_fact(conn: sa.Connection, organization_id: str, fact_id: str) -> Fact:
    """Returns a fact, closed or not. Raises NotFound."""
    found = conn.execute(sa.select(facts).where(_f.id == fact_id, _f.organization_id == organization_id)).first()
    if found is None:
        raise no_memory("fact", fact_id)
    return fact_from_row(found)


def delete(tx: Transaction, table: sa.Table, *conditions: Condition) -> int:
    """Deletes the rows of the organization that match the conditions. Returns their number."""
    column = table.c
    where = (column.organization_id == tx.organization_id, *conditions)
    ids = list(tx.conn.execute(sa.select(column.id).where(*where)).scalars())
    if not ids:
        return 0
    matching = sa.select(column.id).where(*where)
    for dependent in (memory_links, memory_terms):
        tx.conn.execute(sa.delete(dependent).where(dependent.c.memory_id.in_(matching)))
    tx.conn.execute(sa.delete(table).where(*where))
    transaction.add_memory_changes(tx.conn, ids, tx.now)
    return len(ids)


def read_texts(conn: sa.Connection, ids: Sequence[str]) -> list[MemoryText]:
    """Returns the texts for the vector index, of those of `ids` that exist."""
    found = []
    for table, text in ((episodes, _e.summary), (facts, _f.text)):
        column = table.c
        columns = (column.id, column.organization_id, column.scope_kind, column.scope_id, column.owner_agent_id, text)
        for row in conn.execute(sa.select(*columns).where(column.id.in_(ids))):
            scope = Scope(ScopeKind(row.scope_kind), row.scope_id)
            found.append(MemoryText(row.id, row.organization_id, scope, row.owner_agent_id, row[5]))
    return found


def _put_links(tx: Transaction, memory: Episode | Fact) -> None:
    if links := list(_links(memory)):
        tx.conn.execute(_LINK, links)


def _links(memory: Episode | Fact) -> Iterator[dict[str, Any]]:
    for tag in dict.fromkeys(memory.tags):
        yield {"memory_id": memory.id, "kind": TAG, "value": tag}
    for message_id in dict.fromkeys(memory.source.message_ids):
        yield {"memory_id": memory.id, "kind": MESSAGE, "value": message_id}
    if isinstance(memory, Episode):
        agent_id = covered_agent(memory)
        for turn_id in dict.fromkeys(memory.turn_ids if agent_id is not None else ()):
            yield {"memory_id": memory.id, "kind": TURN, "value": turn_link(agent_id or "", turn_id)}
    elif memory.source.episode_id is not None:
        yield {"memory_id": memory.id, "kind": EPISODE, "value": memory.source.episode_id}


def covered_agent(memory: Episode) -> str | None:
    """Returns the agent whose turns an episode covers; None if it is unknown."""
    own = memory.scope.id if memory.scope.kind is ScopeKind.AGENT else None
    # The source of an imported episode is the exporting agent, and its turns are those of the importing one.
    return own if own is not None and memory.imported_id is not None else memory.source.agent_id or own


def _put_terms(tx: Transaction, memory: Episode | Fact) -> None:
    kind, text = ("episode", memory.summary) if isinstance(memory, Episode) else ("fact", memory.text)
    put_words(tx.conn, tx.organization_id, kind, memory.scope, memory.id, text)


_l = memory_links.c


def episode_conditions(organization_id: str, filter_: EpisodeFilter) -> Iterator[Condition]:
    yield _e.organization_id == organization_id
    yield from _shared_conditions(episodes, filter_.scopes, filter_.tags_any, filter_.tags_all, filter_.message_id)
    if filter_.turn_id is not None and filter_.agent_id is not None:
        yield _linked(_e.id, TURN, [turn_link(filter_.agent_id, filter_.turn_id)])
    elif filter_.agent_id is not None:
        prefix = turn_link(filter_.agent_id, "")
        yield _e.id.in_(
            sa.select(_l.memory_id).where(_l.kind == TURN, _l.value >= prefix, _l.value < prefix[:-1] + "0")
        )
    if filter_.known_at is not None:
        yield _e.created_at <= filter_.known_at
    if filter_.from_time is not None:
        yield sa.func.coalesce(_e.ended_at, _e.started_at) >= filter_.from_time
    if filter_.before_time is not None:
        yield sa.func.coalesce(_e.started_at, _e.ended_at) < filter_.before_time


def fact_conditions(organization_id: str, filter_: FactFilter, now: datetime) -> Iterator[Condition]:
    yield _f.organization_id == organization_id
    yield from _shared_conditions(facts, filter_.scopes, filter_.tags_any, filter_.tags_all, filter_.message_id)
    if filter_.min_confidence is not None:
        yield _f.confidence >= filter_.min_confidence
    if filter_.episode_id is not None:
        yield _linked(_f.id, EPISODE, [filter_.episode_id])
    known_at = filter_.known_at or now
    yield _f.created_at <= known_at
    if not filter_.include_invalid:
        yield from valid(filter_.valid_at or now, known_at, filter_.valid_since)


def valid(valid_at: datetime, known_at: datetime, since: datetime | None = None) -> Iterator[Condition]:
    """Yields the conditions that a fact is valid at one time, by the knowledge of another time.

    With `since`, it is valid at any time from `since` to `valid_at`.
    """
    yield sa.or_(_f.valid_from.is_(None), _f.valid_from <= valid_at)
    # Before it was closed, the fact was known to end as it was first written.
    known_end: sa.ColumnElement[Any] = sa.case((_f.closed_at > known_at, _f.first_invalid_at), else_=_f.invalid_at)
    yield sa.or_(known_end.is_(None), known_end > (since or valid_at))
    if since is not None:
        # A fact that ended when it started was never valid.
        yield sa.or_(known_end.is_(None), _f.valid_from.is_(None), known_end > _f.valid_from)


def in_scopes(table: sa.Table, scopes: Sequence[Scope]) -> Condition:
    """Returns the condition that the scope of a row is one of `scopes`."""
    column = table.c
    return sa.or_(*(sa.and_(column.scope_kind == scope.kind.value, column.scope_id == scope.id) for scope in scopes))


def _shared_conditions(
    table: sa.Table,
    scopes: Sequence[Scope],
    tags_any: Sequence[str],
    tags_all: Sequence[str],
    message_id: str | None,
) -> Iterator[Condition]:
    if scopes:
        yield in_scopes(table, scopes)
    if tags_any:
        yield _linked(table.c.id, TAG, tags_any)
    for tag in tags_all:
        yield _linked(table.c.id, TAG, [tag])
    if message_id is not None:
        yield _linked(table.c.id, MESSAGE, [message_id])


def _linked(id_: sa.ColumnElement[str], kind: str, values: Sequence[str]) -> Condition:
    return id_.in_(sa.select(_l.memory_id).where(_l.kind == kind, _l.value.in_(values)))


_m, _t = messages.c, memory_terms.c
_BATCH: Final = 500
_COMPARED_FACTS: Final = 20
_COMPARED_TERMS: Final = 200
_TIME_SPAN: Final = sa.select(sa.func.min(_m.created_at), sa.func.max(_m.created_at))


def commit(tx: Transaction, request: EpisodeCommit, ids: IdSource) -> tuple[Episode | None, list[Fact]]:
    """See EpisodeStore.commit_episode."""
    if request.requires_sources:
        _require_messages(tx, request.source_message_ids)
    if request.conversation_id is not None:
        _check_lease(tx, request.conversation_id, request)
    scope, episode = request.scope, None
    if request.episode is not None:
        scope = required_scope(request.episode.scope or scope, "episode.scope")
        episode = _add_episode(tx, request.episode, scope, ids)
    results = []
    for index, operation in enumerate(request.operations):
        complete = operation if episode is None else with_source_episode(operation, episode)
        results.append(apply(tx, complete, scope, ids, f"operations[{index}]"))
    return episode, results


def apply(tx: Transaction, operation: FactOperation, scope: Scope | None, ids: IdSource, field: str) -> Fact:
    """Runs one operation. Returns the fact that it added, closed or confirmed; for a supersede, the new fact."""
    match operation:
        case AddFact(new):
            return add(tx, new, required_scope(new.scope or scope, f"{field}.add.scope"), ids, merges=True)[0]
        case SupersedeFact():
            return supersede(tx, operation, ids, f"{field}.supersede")[0]
        case InvalidateFact():
            return invalidate(tx, operation)
        case ConfirmFact():
            return confirm(tx, operation)


def add(tx: Transaction, new: NewFact, scope: Scope, ids: IdSource, *, merges: bool = False) -> tuple[Fact, bool]:
    """Adds a fact, or confirms the valid fact with the same text. Returns the fact, and whether it existed.

    With `merges`, a valid fact that says the same in nearly the same words is confirmed, too.
    """
    owner = owner_of(tx, scope)
    existing = _find_same(tx, scope, new.text)
    if existing is None and merges and new.invalid_at is None:
        existing = _find_near(tx, scope, new.text)
    if existing is not None:
        fact = confirmed_fact(existing, new.source, new.confidence, tx.now)
        update(tx, fact)
        return fact, True
    fact = created_fact(new, scope, ids.new("fact"), tx.now)
    insert(tx, fact, owner)
    return fact, False


def supersede(tx: Transaction, operation: SupersedeFact, ids: IdSource, field: str) -> tuple[Fact, Fact]:
    """Closes a fact in favour of a new one. Returns the new fact and the closed one."""
    old = read_fact(tx.conn, tx.organization_id, operation.fact_id)
    fact, closed = superseded_fact(old, operation.fact, ids.new("fact"), tx.now, field, operation.reason)
    owner = owner_of(tx, old.scope)
    insert(tx, fact, owner)
    update(tx, closed)
    return fact, closed


def invalidate(tx: Transaction, operation: InvalidateFact) -> Fact:
    """Closes a fact. A fact that is closed for the same time is unchanged."""
    old = read_fact(tx.conn, tx.organization_id, operation.fact_id)
    if operation.successor_id is not None:
        return _replace(tx, old, operation, operation.successor_id)
    closed = invalidated_fact(old, operation, tx.now)
    if closed is not old:
        owner_of(tx, old.scope)
        update(tx, closed)
    return closed


def _replace(tx: Transaction, old: Fact, operation: InvalidateFact, successor_id: str) -> Fact:
    """Closes a fact in favour of one that exists. A repeat changes nothing."""
    if old.superseded_by_id == successor_id:
        return old
    successor = read_fact(tx.conn, tx.organization_id, successor_id)
    closed, next_ = replaced_fact(old, successor, operation, tx.now)
    owner_of(tx, old.scope)
    # The successor may have a history of its own after it.
    tx.conn.execute(
        sa.update(facts)
        .where(_f.chain_id == successor.chain_id, _f.organization_id == tx.organization_id)
        .values(chain_id=old.chain_id)
    )
    update(tx, next_)
    update(tx, closed)
    return closed


def restore(tx: Transaction, operation: RestoreFact, ids: IdSource) -> tuple[Fact, Fact | None]:
    """States a closed fact again. Returns it, and the fact that it superseded."""
    closed = read_fact(tx.conn, tx.organization_id, operation.fact_id)
    of_chain = sa.select(facts).where(_f.chain_id == closed.chain_id, _f.organization_id == tx.organization_id)
    newest = fact_from_row(
        tx.conn.execute(of_chain.order_by(_f.closed_at.is_(None).desc(), _f.row_id.desc()).limit(1)).one()
    )
    fact, superseded = restored_fact(closed, newest, operation, ids.new("fact"), tx.now)
    if fact.id == newest.id:
        return fact, None
    owner = owner_of(tx, closed.scope)
    insert(tx, fact, owner)
    update(tx, superseded or replace(newest, superseded_by_id=fact.id, updated_at=tx.now))
    return fact, superseded


def confirm(tx: Transaction, operation: ConfirmFact) -> Fact:
    """Adds a source, and possibly a new confidence, to an open fact."""
    fact = read_fact(tx.conn, tx.organization_id, operation.fact_id)
    require_open(fact)
    confirmed = confirmed_fact(fact, operation.source, operation.confidence, tx.now)
    update(tx, confirmed)
    return confirmed


def _require_messages(tx: Transaction, message_ids: Collection[str]) -> None:
    """Raises NotFound if one of the messages does not exist."""
    ordered = sorted(message_ids)
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        found = set(
            tx.conn.execute(
                sa.select(_m.id).where(_m.id.in_(batch), _m.organization_id == tx.organization_id)
            ).scalars()
        )
        for message_id in batch:
            if message_id not in found:
                raise no_message(message_id)


def _find_same(tx: Transaction, scope: Scope, text: str) -> Fact | None:
    """Returns the open, valid fact of the scope with the same text."""
    found = tx.conn.execute(
        sa.select(facts)
        .where(
            _f.organization_id == tx.organization_id,
            in_scopes(facts, [scope]),
            _f.text_key == text_key(text),
            _f.closed_at.is_(None),
            *valid(tx.now, tx.now),
        )
        .order_by(_f.row_id)
        .limit(1)
    ).first()
    return None if found is None else fact_from_row(found)


def _find_near(tx: Transaction, scope: Scope, text: str) -> Fact | None:
    """Returns an open, valid fact of the scope that says the same in nearly the same words."""
    terms = sorted(set(analysed(text)[0]))
    candidates = (
        sa.select(_t.memory_id)
        .where(
            _t.organization_id == tx.organization_id,
            _t.kind == "fact",
            _t.scope_key == scope.key,
            _t.term.in_(terms[:_COMPARED_TERMS]),
        )
        .group_by(_t.memory_id)
        .order_by(sa.func.count().desc(), _t.memory_id)
        .limit(_COMPARED_FACTS)
    )
    found = tx.conn.execute(
        sa.select(facts)
        .where(_f.id.in_(candidates), _f.closed_at.is_(None), *valid(tx.now, tx.now))
        .order_by(_f.row_id)
    )
    near = (row for row in found if (compared := relation(row.text, text)) and compared[0] is Relation.NEAR)
    return next(map(fact_from_row, near), None)


def _add_episode(tx: Transaction, new: NewEpisode, scope: Scope, ids: IdSource) -> Episode:
    owner = owner_of(tx, scope)
    started, ended = _time_span(tx, new, scope)
    times = {"started_at": started or new.started_at, "ended_at": ended or new.ended_at}
    episode = made_of(Episode, new, id=ids.new("episode"), scope=scope, created_at=tx.now, updated_at=tx.now, **times)
    insert(tx, episode, owner)
    return episode


def _time_span(tx: Transaction, new: NewEpisode, scope: Scope) -> tuple[datetime | None, datetime | None]:
    """Returns the times of the first and the last message of an episode, by its message ids and turn ids."""
    conditions: list[sa.ColumnElement[bool]] = []
    if new.source.message_ids:
        conditions.append(_m.id.in_(new.source.message_ids))
    agent_id = new.source.agent_id or (scope.id if scope.kind is ScopeKind.AGENT else None)
    if new.turn_ids and agent_id is not None:
        conditions.append(sa.and_(_m.turn_id.in_(new.turn_ids), _m.agent_id == agent_id))
    if not conditions:
        return None, None
    owned = _m.organization_id == tx.organization_id
    started, ended = tx.conn.execute(_TIME_SPAN.where(owned, sa.or_(*conditions))).one()
    return started, ended


def _check_lease(tx: Transaction, conversation_id: str, request: EpisodeCommit) -> None:
    state = windows.read_state(tx.conn, tx.organization_id, conversation_id)
    epoch = next_epoch(conversation_id, request.lease, state.epoch)
    if epoch > state.epoch:
        windows.update_epoch(tx.conn, conversation_id, epoch)
