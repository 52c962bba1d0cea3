"""The tables of an organization's providers and models."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata

# Providers of organizations. Each credential in the document is sealed.
providers = sa.Table(
    "providers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("providers_by_name", "organization_id", "name", unique=True),
)

model_overrides = sa.Table(
    "model_overrides",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("handle", sa.Text, primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
)

# Raised by each change of an organization's providers or overrides, so that other processes notice it.
model_revisions = sa.Table(
    "model_revisions",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
