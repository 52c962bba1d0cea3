"""Whether a database has the newest schema, told without Alembic: most starts change nothing and need not load it."""

from __future__ import annotations

from importlib import resources
from typing import Final

import sqlalchemy as sa

_VERSIONS: Final = sa.table("alembic_version", sa.column("version_num"))


def is_newest(connection: sa.Connection, package: str) -> bool:
    """Whether the last revision file of `<package>/store/migrations/versions` is what the database stands at.

    Goes by the rule that a file is called after its revision, and that files sort in their order: `0002_tags.py` holds
    revision "0002". A room that named its files otherwise would be told False, and Alembic would look for itself.
    """
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return False
    versions = resources.files(package) / "store" / "migrations" / "versions"
    names = sorted(file.name for file in versions.iterdir() if file.name.endswith(".py"))
    stands_at = connection.execute(sa.select(_VERSIONS.c.version_num)).scalars().all()
    return bool(names) and list(stands_at) == [names[-1].partition("_")[0]]
