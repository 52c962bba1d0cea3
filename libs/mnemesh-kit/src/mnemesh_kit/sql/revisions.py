"""The check for the newest schema without Alembic, which most starts then need not import."""

from __future__ import annotations

from importlib import resources
from typing import Final

import sqlalchemy as sa

from mnemesh_kit.config import StartupError

_VERSIONS: Final = sa.table("alembic_version", sa.column("version_num"))


def is_newest(connection: sa.Connection, package: str) -> bool:
    """Returns whether the database has the last revision in `<package>/store/migrations/versions`.

    A file is named after its revision, and files sort by revision: `0101_tags.py` contains the revision "0101". For
    other names the result is False, and Alembic decides.

    Raises:
        StartupError: the database has a revision that this version of the service does not know.
    """
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return False
    versions = resources.files(package) / "store" / "migrations" / "versions"
    names = sorted(file.name for file in versions.iterdir() if file.name.endswith(".py"))
    known = [name.partition("_")[0] for name in names]
    current = list(connection.execute(sa.select(_VERSIONS.c.version_num)).scalars())
    unknown = next((revision for revision in current if revision not in known), None)
    if known and unknown:
        if unknown < known[0]:
            raise StartupError(
                f"The database has the schema of a version before the first release: revision {unknown}, and {package} "
                f"reads {known[0]} and later. Use an empty database, or another data directory."
            )
        raise StartupError(
            f"The database has the schema of a newer version: revision {unknown}, and this version knows {known[-1]}. "
            f"Install the newer version of {package}."
        )
    return bool(known) and current == known[-1:]
