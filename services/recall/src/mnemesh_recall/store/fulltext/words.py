"""The word index: for each word, the messages of an agent and those of an organization that contain it.

The rows of `message_words` have what the ranking reads. `message_terms` is the index of the engine: FTS5 on SQLite, an
array under GIN on PostgreSQL. It has no text. An entry is a key: in the upper half of its 64 bits a hash of the agent
or of the organization, in the lower half one of the word. So the messages of an agent with a word are one entry, and no
search reads the entries of other agents.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.words.analysis import CJK_CHARACTER

from mnemesh_recall.model.ranking import SECTION, Candidate
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store import tables
from mnemesh_recall.store.fulltext.documents import Document, SearchableMessage
from mnemesh_recall.store.tables import message_words, messages

READ_CHARACTERS: Final = 8_000
"""The length of the part of a candidate's body that is read for the ranking."""
RECENT: Final = 20_000
"""The number of newest messages that PostgreSQL reads for the common words of an organization. GIN returns matches in
no order, so that finding the newest ones otherwise takes reading all of them."""
ENOUGH_RECENT: Final = 100
"""The number of matches among these from which on no others are looked for."""
OFTEN: Final = 333
"""The number of messages with a word from which on those beside it are not looked for: they are more than a thousand in
most dialogues, and add nothing."""
Rows = Sequence[int]
"""The numbers of messages, the newest first."""
_MERGED_PAGES: Final = 100
"""The number of pages that one step of a merge writes: some 10 ms."""
_ALL_TIME: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
_HALF: Final = 32
_SIGN: Final = 1 << 63

_w = message_words.c


def words_in(*texts: str) -> set[str]:
    """Returns the different words of analysed texts, and the pairs of Kana or Han characters, as queries have them."""
    found: set[str] = set()
    for text in texts:
        words = text.split()
        found.update(words)
        if not text.isascii():
            found.update(
                f"{first} {second}"
                for first, second in pairwise(words)
                if CJK_CHARACTER.match(first) and CJK_CHARACTER.match(second)
            )
    found.discard(SECTION)
    return found


# No word contains one of these marks.
def _beside(word: str) -> str:
    """Returns the term of messages beside those with a word, in the search of an agent."""
    return f"~{word}"


def _of_text(fingerprint: str) -> str:
    """Returns the term of messages whose text has a fingerprint."""
    return f"={fingerprint}"


def _of_conversation(conversation_id: str) -> str:
    return f"@{conversation_id}"


def _of_role(role: str) -> str:
    return f":{role}"


def _keys(owner: str, terms: Iterable[str]) -> list[int]:
    """Returns the keys of terms in the messages of an agent or an organization."""
    upper = crc32(owner.encode()) << _HALF
    return [upper | crc32(term.encode()) for term in terms]


def _keys_of(source: SearchableMessage, words: Mapping[str, Any]) -> list[int]:
    """Returns the keys of a message in ascending order, given columns of its row of `message_words`."""
    own = words_in(words["body"], words["asked"], words["about"])
    own |= {_of_text(words["fingerprint"]), _of_role(source.role)}
    if source.conversation_id is not None:
        own.add(_of_conversation(source.conversation_id))
    near = map(_beside, words_in(words["beside"], words["around"]))
    of_agent = _keys(source.agent_id, [*own, *near])
    return sorted({*of_agent, *_keys(source.organization_id, own)})


_SQLITE: Final = "sqlite"
_JOIN: Final = {_SQLITE: "CROSS JOIN", "postgresql": "JOIN"}
"""The join that keeps the order of the tables on SQLite. PostgreSQL finds it."""
# PostgreSQL does not know how few rows are wanted, and would read a whole index to merge it with them.
_FETCHED: Final = {
    _SQLITE: "CROSS JOIN {0} ON {0}.row_id = wanted.row_id",
    "postgresql": "CROSS JOIN LATERAL (SELECT * FROM {0} WHERE row_id = wanted.row_id OFFSET 0) AS {0}",
}
_TEXTS: Final = ("ids", "leaders", "roles", "excluded", "speakers", "senders")
_LISTS: Final = {
    _SQLITE: {name: f"(SELECT value FROM json_each(:{name}))" for name in (*_TEXTS, "row_ids")},  # noqa: S608
    "postgresql": {
        name: f"(SELECT unnest(CAST(:{name} AS {kind}[])) AS value)"
        for names, kind in ((_TEXTS, "text"), (("row_ids",), "bigint"))
        for name in names
    },
}
"""The parameters that are lists, as tables with a column `value`."""
# `coalesce` keeps the planner from walking the index on times.
_ROW_FILTERS: Final = """
    coalesce(created_at, created_at) >= :from_time AND coalesce(created_at, created_at) < :before_time
        AND id NOT IN {excluded}
        AND (CAST(:every_speaker AS boolean) OR speaker IN {speakers})
        AND (CAST(:every_sender AS boolean) OR sender_id IN {senders})
"""
# The organization and the agent are hidden from the planner: without statistics it would read their indexes instead of
# a few rows by their numbers.
_READ: Final = f"""
    WITH near AS (
        SELECT value AS id FROM {{ids}} AS ids
        UNION
        SELECT after_id FROM {{leaders}} AS leaders {{join}} messages ON messages.id = leaders.value
        {{join}} message_words ON message_words.row_id = messages.row_id
    ), wanted AS (
        SELECT value AS row_id FROM {{row_ids}} AS row_ids
        UNION
        SELECT messages.row_id FROM near {{join}} messages ON messages.id = near.id
    )
    SELECT messages.row_id AS row_id, fingerprint, messages.id AS id, substr(body, 1, {READ_CHARACTERS}) AS body,
        length(body) AS body_characters, asked, beside, around, about, before_id, after_id, ends_in_question, created_at
    FROM wanted {{messages}} {{message_words}}
    WHERE organization_id || '' = :organization
        AND (CAST(:agent AS text) IS NULL OR agent_id || '' = :agent)
        AND (CAST(:conversation AS text) IS NULL OR conversation_id || '' = :conversation)
        AND (CAST(:every_role AS boolean) OR role IN {{roles}})
        AND {_ROW_FILTERS}
    ORDER BY messages.row_id DESC
"""  # noqa: S608
_POSTINGS: Final = {
    _SQLITE: """
        SELECT (SELECT json_group_array(row_id) FROM (
            SELECT message_terms.rowid AS row_id FROM message_terms {joined}
            WHERE message_terms MATCH asked.value {filters} ORDER BY message_terms.rowid DESC LIMIT :most)) AS row_ids
        FROM json_each(:asked) AS asked ORDER BY asked.key
    """,
    # What lies beside a common word is not read: GIN would read the rows of nearly all messages of the agent.
    "postgresql": """
        SELECT own.row_ids AS row_ids,
            CASE WHEN cardinality(own.row_ids) <= :often AND near IS NOT NULL THEN {near} ELSE CAST(ARRAY[] AS bigint[])
            END AS near_ids
        FROM unnest(CAST(:asked AS bigint[]), CAST(:near AS bigint[])) WITH ORDINALITY AS asked (asked, near, place),
            LATERAL (SELECT {own} AS row_ids OFFSET 0) AS own
        ORDER BY place
    """,
}
# `row_id + 0` keeps the planner from walking the index on row_id instead. The planner does not know how rare words are,
# so the condition on them is applied first.
_NEWEST: Final = """ARRAY(
    SELECT row_id FROM (
        SELECT row_id FROM message_terms
        WHERE terms @> (ARRAY[{key}] || CAST(:required AS bigint[]))
            AND (CAST(:every_role AS boolean) OR terms && CAST(:role_keys AS bigint[]))
        OFFSET 0
    ) AS matching {{joined}} WHERE true {{filters}} ORDER BY row_id + 0 DESC LIMIT :most)"""
_JOINED: Final = {
    _SQLITE: "CROSS JOIN messages ON messages.row_id = message_terms.rowid",
    "postgresql": "JOIN messages USING (row_id)",
}
# For an organization: some messages with each word, and the newest ones in the newest messages.
_SOME: Final = Prepared(
    sa.text(
        """
        SELECT ARRAY(
            SELECT row_id FROM message_terms
            WHERE terms @> (ARRAY[asked] || CAST(:required AS bigint[]))
                AND (CAST(:every_role AS boolean) OR terms && CAST(:role_keys AS bigint[]))
            LIMIT :most) AS row_ids
        FROM unnest(CAST(:asked AS bigint[])) WITH ORDINALITY AS asked (asked, place) ORDER BY place
        """
    )
)
_RECENT: Final = Prepared(
    sa.text(
        """
        SELECT asked, array_agg(row_id ORDER BY row_id DESC) AS row_ids FROM (
            SELECT row_id, terms FROM message_terms ORDER BY row_id DESC LIMIT :recent) AS recent
        JOIN unnest(CAST(:asked AS bigint[])) AS asked
            ON terms @> (ARRAY[asked] || CAST(:required AS bigint[]))
                AND (CAST(:every_role AS boolean) OR terms && CAST(:role_keys AS bigint[]))
        GROUP BY asked
        """
    )
)


def _prepared(dialect: str, sql: str, *, has_filters: bool = True) -> Prepared[Any]:
    """Returns a statement, given its text with the names of lists in braces."""
    fetched = {name: _FETCHED[dialect].format(name) for name in ("messages", "message_words")}
    statement = sa.text(sql.format(**_LISTS[dialect], **fetched, join=_JOIN[dialect]))
    if has_filters:
        times = (sa.bindparam(name, type_=messages.c.created_at.type) for name in ("from_time", "before_time"))
        statement = statement.bindparams(*times)
    return Prepared(statement)


def _prepared_read(dialect: str) -> Prepared[Any]:
    statement = _prepared(dialect, _READ).statement
    typed = {"created_at": messages.c.created_at.type, "ends_in_question": sa.Boolean()}
    names = ("row_id", "fingerprint", *Candidate._fields[:-2])
    return Prepared(statement.columns(*(sa.column(name, typed.get(name)) for name in names)))


def _prepared_postings(dialect: str, *, is_filtered: bool) -> Prepared[Any]:
    joined, filters = (_JOINED[dialect], f"AND {_ROW_FILTERS}") if is_filtered else ("", "")
    lists = {name: _NEWEST.format(key=key) for name, key in (("own", "asked"), ("near", "near"))}
    statement = _POSTINGS[dialect].format(**lists) if dialect != _SQLITE else _POSTINGS[dialect]
    return _prepared(dialect, statement.format(joined=joined, filters=filters), has_filters=is_filtered)


_READ_ROWS: Final = {dialect: _prepared_read(dialect) for dialect in _JOIN}
_READ_POSTINGS: Final = {
    (dialect, is_filtered): _prepared_postings(dialect, is_filtered=is_filtered)
    for dialect in _JOIN
    for is_filtered in (False, True)
}
_STORED: Final = {
    dialect: Prepared(sa.select(message_words).where(condition))
    for dialect, condition in tables.among(_w.row_id).items()
}
_DELETE: Final = {
    dialect: Prepared(sa.delete(message_words).where(condition))
    for dialect, condition in tables.among(_w.row_id).items()
}
_PUT: Final = Prepared(
    sa.text(
        """
        INSERT INTO message_words (row_id, fingerprint, body, asked, beside, around, about, before_id, after_id,
            ends_in_question)
        VALUES (:row_id, :fingerprint, :body, :asked, :beside, :around, :about, :before_id, :after_id,
            :ends_in_question)
        ON CONFLICT (row_id) DO UPDATE SET
            fingerprint = excluded.fingerprint, body = excluded.body, asked = excluded.asked, beside = excluded.beside,
            around = excluded.around, about = excluded.about, before_id = excluded.before_id,
            after_id = excluded.after_id, ends_in_question = excluded.ends_in_question
        """
    )
)
_ADD_TERMS: Final = {
    _SQLITE: Prepared(sa.text("INSERT INTO message_terms (rowid, terms) VALUES (:row_id, :terms)")),
    "postgresql": Prepared(sa.text("INSERT INTO message_terms (row_id, terms) VALUES (:row_id, :terms)")),
}
# FTS5 has no copy of the terms, so it has to be told what it removes.
_REMOVE_TERMS: Final = {
    _SQLITE: Prepared(
        sa.text("INSERT INTO message_terms (message_terms, rowid, terms) VALUES ('delete', :row_id, :terms)")
    ),
    "postgresql": Prepared(
        sa.text("DELETE FROM message_terms WHERE row_id = :row_id AND CAST(:terms AS bigint[]) IS NOT NULL")
    ),
}
_CLEAR: Final = {
    _SQLITE: sa.text("INSERT INTO message_terms (message_terms) VALUES ('delete-all')"),
    "postgresql": sa.text("DELETE FROM message_terms"),
}
_MERGE: Final = sa.text("INSERT INTO message_terms (message_terms, rank) VALUES ('merge', :pages)")
_ANY: Final = sa.select(_w.row_id).limit(1)


class Matches(NamedTuple):
    """The messages of a scope with a word, the newest first, by their numbers."""

    rows: Rows
    near: Rows = ()
    """Those beside a message with the word."""
    is_common: bool = False
    """True if more messages have the word, or are beside one."""


class WordIndex:
    """The word index inside the SQL database.

    It is updated in the transaction that writes the messages, except for those of committed steps; see `unindexed`.
    """

    def __init__(self, database: Database) -> None:
        self._dialect = database.dialect

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """Writes documents. Each replaces the document of its row; its terms are written if they are others."""
        stored = self._stored(conn, [document.source for document in documents])
        outdated, added = [], []
        rows = [document.to_row() for document in documents]
        for document, row in zip(documents, rows, strict=True):
            keys = _keys_of(document.source, row)
            before = stored.get(document.source.row_id)
            if before == keys:
                continue
            if before is not None:
                outdated.append(self._terms_row(document.source.row_id, before))
            added.append(self._terms_row(document.source.row_id, keys))
        self._change(conn, _REMOVE_TERMS, outdated)
        _PUT.send_each(conn, rows)
        self._change(conn, _ADD_TERMS, added)

    def remove(self, conn: sa.Connection, sources: Sequence[SearchableMessage]) -> None:
        """Removes the documents of messages, which need not exist any more."""
        stored = self._stored(conn, sources)
        if stored:
            self._change(conn, _REMOVE_TERMS, [self._terms_row(*item) for item in stored.items()])
            _DELETE[self._dialect].change(conn, tables.listed(conn, list(stored)))

    def clear(self, conn: sa.Connection) -> None:
        """Removes all documents."""
        conn.execute(_CLEAR[self._dialect])
        conn.execute(sa.delete(message_words))

    def merge(self, conn: sa.Connection, *, first: bool) -> bool:
        """Merges some of the parts in which FTS5 stores the index. Autovacuum merges the pending list of GIN.

        Args:
            conn: the connection.
            first: whether this call begins to merge all parts into one; further calls continue.

        Returns:
            Whether there is more to merge.
        """
        if self._dialect != _SQLITE:
            return False
        driver: Any = conn.connection.driver_connection
        before = driver.total_changes
        conn.execute(_MERGE, {"pages": -_MERGED_PAGES if first else _MERGED_PAGES})
        return bool(driver.total_changes - before > 1)  # The statement counts as one change if nothing is merged.

    def is_empty(self, conn: sa.Connection) -> bool:
        """Returns whether the index has no document."""
        return conn.execute(_ANY).first() is None

    def newest(
        self,
        conn: sa.Connection,
        organization_id: str,
        scope: SearchScope,
        words: Sequence[str],
        fingerprint: str,
        most: int,
        *,
        is_filtered: bool = False,
    ) -> tuple[list[Matches], Rows]:
        """Returns for each word the newest messages with it, and those beside such; and those with a fingerprint.

        There are at most `most` of each. Nothing is found beside a word that more than OFTEN messages have, or in
        a search of an organization. The conversation and the roles of the scope count always, its other conditions with
        `is_filtered`. Very rarely, messages of another agent or without the word are among them, because keys are
        hashes.
        """
        owner = scope.agent_id or organization_id
        asked = _keys(owner, [*words, _of_text(fingerprint)])
        near = _keys(owner, map(_beside, words)) if scope.agent_id is not None else []
        conversations = () if scope.conversation_id is None else (_of_conversation(scope.conversation_id),)
        required = _keys(owner, conversations)
        roles = _keys(owner, (_of_role(role.value) for role in scope.roles))
        statement = _READ_POSTINGS[self._dialect, is_filtered]
        filters = _row_filters(conn, scope) if is_filtered else {}
        if self._dialect == _SQLITE:
            queries = [_match(key, required, roles) for key in (*asked, *near)]
            found = statement.all(conn, {"asked": json.dumps(queries), "most": most, **filters})
            lists = [json.loads(row[0]) for row in found]
            exact, of_near = lists[len(words)], lists[len(asked) :] or [[]] * len(words)
            return [_matches(*both, most, is_near=bool(near)) for both in zip(lists, of_near, strict=False)], exact
        parameters = {
            "required": list(map(_signed, required)), "role_keys": list(map(_signed, roles)), "every_role": not roles,
        }  # fmt: skip
        keys = list(map(_signed, asked))
        near_keys = [*map(_signed, near), *[None] * (len(keys) - len(near))]
        matches: dict[int, Matches] = {}
        if scope.agent_id is None and not is_filtered:
            matches.update(self._of_organization(conn, keys, parameters, most))
        left = [pair for pair in zip(keys, near_keys, strict=True) if pair[0] not in matches]
        if left:
            asked_left = {"asked": [key for key, _ in left], "near": [key for _, key in left]}
            found = statement.all(conn, {**parameters, **filters, **asked_left, "most": most, "often": OFTEN})
            for (key, _), row in zip(left, found, strict=True):
                matches[key] = _matches(row[0], row[1], most, is_near=bool(near))
        return [matches[key] for key in keys[:-1]], matches[keys[-1]].rows

    def _of_organization(
        self, conn: sa.Connection, keys: Sequence[int], parameters: Mapping[str, Any], most: int
    ) -> Iterator[tuple[int, Matches]]:
        """Yields the keys of which the newest messages are found in less time than that of reading all of them."""
        common = []
        for key, row in zip(keys, _SOME.all(conn, {**parameters, "asked": keys, "most": most}), strict=True):
            if len(row[0]) < most:
                yield key, Matches(sorted(row[0], reverse=True))
            else:
                common.append(key)
        recent = _RECENT.all(conn, {**parameters, "asked": common, "recent": RECENT}) if common else ()
        for key, row_ids in recent:
            if len(row_ids) >= ENOUGH_RECENT:
                yield key, Matches(row_ids[:most], is_common=True)

    def read(
        self,
        conn: sa.Connection,
        organization_id: str,
        scope: SearchScope,
        *,
        row_ids: Collection[int] = (),
        ids: Sequence[str] = (),
        leaders: Sequence[str] = (),
        exact: str = "",
    ) -> list[Candidate]:
        """Returns messages of the scope, newest first.

        Args:
            conn: the connection.
            organization_id: the organization.
            scope: the scope.
            row_ids: the numbers of messages that match by words.
            ids: the ids of further messages.
            leaders: the ids of messages; those that follow them in the dialogue are returned.
            exact: the fingerprint of the query.
        """
        lists: dict[str, Sequence[Any]] = {"row_ids": list(row_ids), "ids": list(ids), "leaders": list(leaders)}
        lists["roles"] = [role.value for role in scope.roles]
        parameters = {
            "organization": organization_id,
            "agent": scope.agent_id,
            "conversation": scope.conversation_id,
            "every_role": not scope.roles,
            **_lists(conn, lists),
            **_row_filters(conn, scope),
        }
        matching = set(row_ids)
        return [
            Candidate._make((*row[2:], row[0] in matching, row[0] in matching and row[1] == exact))
            for row in _READ_ROWS[self._dialect].all(conn, parameters)
        ]

    def _stored(self, conn: sa.Connection, sources: Sequence[SearchableMessage]) -> dict[int, list[int]]:
        """Returns the keys of the messages that are indexed."""
        of_row = {source.row_id: source for source in sources}
        rows = _STORED[self._dialect].all(conn, tables.listed(conn, list(of_row))) if of_row else ()
        return {row.row_id: _keys_of(of_row[row.row_id], row._asdict()) for row in rows}

    def _terms_row(self, row_id: int, keys: Sequence[int]) -> dict[str, Any]:
        if self._dialect == _SQLITE:
            return {"row_id": row_id, "terms": " ".join(map(_token, keys))}
        return {"row_id": row_id, "terms": list(map(_signed, keys))}

    def _change(
        self, conn: sa.Connection, statements: Mapping[str, Prepared[Any]], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        if rows:
            statements[self._dialect].send_each(conn, rows)


def _matches(rows: Rows, near: Rows, most: int, *, is_near: bool) -> Matches:
    """Returns the matches of a word; without those beside it if it is common. With `is_near` these are looked for."""
    is_common = len(rows) > OFTEN if is_near else len(rows) >= most
    return Matches(rows, () if is_common else near, is_common)


def _token(key: int) -> str:
    return f"{key:016x}"


def _signed(key: int) -> int:
    return key - _SIGN


def _match(key: int, required: Iterable[int], roles: Sequence[int]) -> str:
    """Returns the query of FTS5 for a key, all of the required ones, and one of the roles."""
    parts = [_token(key), *map(_token, required)]
    if roles:
        parts.append(f"({' OR '.join(map(_token, roles))})")
    return " AND ".join(parts)


def _row_filters(conn: sa.Connection, scope: SearchScope) -> dict[str, Any]:
    """Returns the parameters of the conditions that the index cannot check."""
    return {
        "from_time": scope.from_time or _ALL_TIME[0],
        "before_time": scope.before_time or _ALL_TIME[1],
        "every_speaker": not scope.speakers,
        "every_sender": not scope.sender_ids,
        **_lists(
            conn,
            {
                "excluded": list(scope.exclude_ids),
                "speakers": [name.casefold() for name in scope.speakers],
                "senders": list(scope.sender_ids),
            },
        ),
    }


def _lists(conn: sa.Connection, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: json.dumps(each) for name, each in values.items()} if conn.dialect.name == _SQLITE else dict(values)
