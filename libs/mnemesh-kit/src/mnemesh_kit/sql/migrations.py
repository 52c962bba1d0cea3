"""Runs the Alembic revisions of a service on a connection, without Alembic's command line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

# The lock that all replicas of all services take while they migrate a database. Its value is the name in ASCII.
_LOCK: Final = 0x6D6E656D657368


def upgrade(connection: sa.Connection, package: str) -> None:
    """Runs the revisions in `<package>/store/migrations/versions` that the database does not have yet.

    All of them run in the caller's transaction, so an upgrade is atomic.
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
        return scripts._upgrade_revs("head", revision)  # (as Alembic's upgrade command does)

    return to_newest
