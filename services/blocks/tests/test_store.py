"""The migrations of the block store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from mnemesh_blocks.store.sql.tables import blocks
from mnemesh_kit.sql import Database
from mnemesh_testkit.databases.revisions import at_revision


async def test_migrations_create_the_declared_tables(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from mnemesh_blocks.store.sql.tables import metadata

    database = Database.open(f"sqlite:///{tmp_path / 'blocks.db'}")
    await database.migrate("mnemesh_blocks")
    assert await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata)) == []
    await database.close()


async def test_blocks_of_agents_of_earlier_versions_are_known_from_their_requests(database_url: str) -> None:
    time = "2026-01-02 03:04:05.000000"
    block: dict[str, Any] = {
        "organization_id": "org-1", "label": "human", "value": "", "char_limit": 1, "read_only": 0, "revision": 1,
        "content_revision": 1, "tags": "[]", "identity_ids": "[]", "hidden": 0, "is_template": 0,
        "preserve_on_migration": 0, "created_at": time, "updated_at": time, "created_by_id": "",
        "last_updated_by_id": "",
    }  # fmt: skip
    request = {"organization_id": "org-1", "fingerprint": "f", "created_at": time}
    created = [("CreateBlock", "agent-1/block/0", "block-1"), ("CreateBlock", "r-1", "block-2")]
    rows = {
        "blocks": [{**block, "id": f"block-{number}"} for number in (1, 2, 3)],
        "request_ledger": [
            {**request, "method": method, "request_id": id_, "result_ids": f'["{block_id}"]'}
            for method, id_, block_id in created
        ],
    }
    await at_revision(database_url, "mnemesh_blocks", "0002", rows)
    database = Database.open(database_url)
    await database.migrate("mnemesh_blocks")
    query = sa.select(blocks.c.id, blocks.c.created_for_agent_id)
    found = await database.read(lambda conn: {row[0]: row[1] for row in conn.execute(query)})
    await database.close()
    assert found == {"block-1": "agent-1", "block-2": None, "block-3": None}
