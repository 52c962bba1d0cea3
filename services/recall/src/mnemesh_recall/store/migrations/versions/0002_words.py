"""Replaces the full-text index by one with stemmed words, speakers and days; adds an index on message times.

The service fills the full-text index when it starts.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NEW_SQLITE = (
    """CREATE VIRTUAL TABLE message_words
    USING fts5(scope, body, beside, around, about, tokenize = "unicode61 remove_diacritics 0")""",
)
NEW_POSTGRESQL = (
    "DROP TEXT SEARCH CONFIGURATION engram_words",
    "DROP TEXT SEARCH DICTIONARY engram_stem",
    """CREATE TABLE message_words (
        row_id BIGINT PRIMARY KEY, body TEXT NOT NULL, beside TEXT NOT NULL, around TEXT NOT NULL,
        about TEXT NOT NULL, words TSVECTOR NOT NULL)""",
    "CREATE INDEX ix_message_words ON message_words USING gin (words)",
)
OLD_SQLITE = (
    """CREATE VIRTUAL TABLE message_words
    USING fts5(scope, body, context, tokenize = "porter unicode61 remove_diacritics 2")""",
)
OLD_POSTGRESQL = (
    "CREATE TEXT SEARCH DICTIONARY engram_stem (TEMPLATE = snowball, LANGUAGE = 'english')",
    "CREATE TEXT SEARCH CONFIGURATION engram_words (COPY = simple)",
    "ALTER TEXT SEARCH CONFIGURATION engram_words ALTER MAPPING FOR asciiword, word, numword WITH engram_stem",
    "CREATE TABLE message_words (row_id BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)",
    "CREATE INDEX ix_message_words ON message_words USING gin (words)",
)


def upgrade() -> None:
    _replace(NEW_SQLITE, NEW_POSTGRESQL)
    op.create_index("ix_messages_created", "messages", ["created_at"])


def downgrade() -> None:
    op.drop_index("ix_messages_created", "messages")
    _replace(OLD_SQLITE, OLD_POSTGRESQL)


def _replace(sqlite: tuple[str, ...], postgresql: tuple[str, ...]) -> None:
    op.execute("DROP TABLE message_words")
    for statement in sqlite if op.get_bind().dialect.name == "sqlite" else postgresql:
        op.execute(statement)
