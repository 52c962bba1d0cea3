"""The check for the newest schema without Alembic, which most starts then need not import."""

from __future__ import annotations

from importlib import resources
from typing import Final

import sqlalchemy as sa

_VERSIONS: Final = sa.table("alembic_version", sa.column("version_num"))


def is_newest(connection: sa.Connection, package: str) -> bool:
    """Returns whether the database has the last revision in `<package>/store/migrations/versions`.

    A file is named after its revision, and files sort by revision: `0002_tags.py` contains the revision "0002". For
    other names the result is False, and Alembic decides.
    """
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return False
    versions = resources.files(package) / "store" / "migrations" / "versions"
    names = sorted(file.name for file in versions.iterdir() if file.name.endswith(".py"))
    current = connection.execute(sa.select(_VERSIONS.c.version_num)).scalars().all()
    return bool(names) and list(current) == [names[-1].partition("_")[0]]
