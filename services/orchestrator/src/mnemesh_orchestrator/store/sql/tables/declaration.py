"""The metadata to which all tables belong, and the declaration of partial indexes."""

import sqlalchemy as sa
from mnemesh_kit.idempotency import ledger_table

metadata = sa.MetaData()

request_ledger = ledger_table(metadata)


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Returns an index of the rows that meet a condition."""
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
