"""The languages of indexed texts: each word of a query is also searched as a word of these languages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from mnemesh_retrieval.words.languages import DEFAULT

from mnemesh_recall.store.sql.tables import word_languages

_STORED: Final = (
    sa.select(word_languages.c.language)
    .where(word_languages.c.organization_id == sa.bindparam("organization"))
    .order_by(word_languages.c.language)
)
_ADD: Final = sa.text(
    "INSERT INTO word_languages (organization_id, language) VALUES (:organization, :language) ON CONFLICT DO NOTHING"
)


def note_languages(conn: sa.Connection, texts: Collection[tuple[str, str]]) -> None:
    """Stores the organization and the language of each text that is indexed in this transaction."""
    if others := sorted({text for text in texts if text[1] != DEFAULT}):
        conn.execute(_ADD, [{"organization": organization, "language": language} for organization, language in others])


def stored_languages(conn: sa.Connection, organization_id: str) -> list[str]:
    """Returns the languages of an organization's indexed texts other than English."""
    return list(conn.execute(_STORED, {"organization": organization_id}).scalars())
