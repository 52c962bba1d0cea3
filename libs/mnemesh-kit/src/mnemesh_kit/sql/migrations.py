"""Alembic without its command line: a room ships revision files, and the kit runs them on a given connection."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

# Any constant will do: it is the one lock that all replicas of all services take while migrating a database.
_LOCK: Final = 0x656E6772616D


def upgrade(connection: sa.Connection, package: str) -> None:
    """Runs the revisions of `<package>/store/migrations/versions` that the database does not have yet.

    The caller's transaction holds all of them: an upgrade happens whole or not at all.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    with resources.as_file(resources.files(package) / "store" / "migrations") as directory:
        scripts = _scripts(directory)
        with EnvironmentContext(_config(directory), scripts, fn=_steps(scripts)) as environment:
            environment.configure(connection=connection, render_as_batch=True)
            environment.run_migrations()


def _scripts(directory: Path) -> ScriptDirectory:
    return ScriptDirectory(str(directory), version_locations=[str(directory / "versions")])


def _config(directory: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(directory).replace("%", "%%"))
    return config


def _steps(scripts: ScriptDirectory) -> Any:
    def to_newest(revision: Any, _context: object) -> Any:
        return scripts._upgrade_revs("head", revision)  # (what Alembic's own upgrade command calls)

    return to_newest
