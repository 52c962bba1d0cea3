"""The lexemes of PostgreSQL that limit a search: organization, agent, conversation, role, and equal texts."""

from __future__ import annotations

from mnemesh_retrieval.ranking.texts import fingerprint

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.documents import Document


def scope_lexemes(item: Document) -> list[str]:
    """Returns the lexemes of a document by which searches are limited to it."""
    source = item.source
    # No word of a text contains a hyphen or a colon.
    tokens = [source.organization_id, source.agent_id, f"{source.role}:"]
    tokens.append(fingerprint_lexeme(fingerprint(source.text)))
    return [*tokens, source.conversation_id] if source.conversation_id is not None else tokens


def fingerprint_lexeme(value: str) -> str:
    """Returns the lexeme of the fingerprint of a text."""
    return f"text:{value}"


def scopes(organization_id: str, scope: SearchScope) -> str:
    """Returns the condition of a scope as a query."""
    # An agent belongs to one organization, so its token is enough.
    lexemes = [quoted(scope.agent_id or organization_id)]
    if scope.conversation_id is not None:
        lexemes.append(quoted(scope.conversation_id))
    if scope.roles:
        lexemes.append(f"({' | '.join(quoted(f'{role.value}:') for role in scope.roles)})")
    return " & ".join(lexemes)


def quoted(lexeme: str) -> str:
    """Returns a lexeme as a part of a query."""
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
