"""The tables of what runs leave: steps with their traces, journals, events."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata, partial_index

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("feedback", sa.Text),
    sa.Column("trace_id", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("steps_by_run", "run_id", "number"),
    sa.Index("steps_by_creation", "organization_id", "created_at", "id"),
    partial_index("steps_by_trace", "trace_id", where="trace_id IS NOT NULL"),
)

step_tags = sa.Table(
    "step_tags",
    metadata,
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("step_id", sa.Text, sa.ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("step_tags_by_step", "step_id"),
)

# Traces are written before their step, so they refer to the run.
step_traces = sa.Table(
    "step_traces",
    metadata,
    sa.Column("step_id", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=False),
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("model_ms", sa.Integer, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("step_traces_by_run", "run_id"),
    sa.Index("step_traces_by_creation", "created_at"),
)

journal = sa.Table(
    "journal",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("step_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("step_id", sa.Text),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
)

run_deltas = sa.Table(
    "run_deltas",
    metadata,
    # Batches of the live events of background runs, numbered within an epoch. `last` is the last number of a batch.
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
    # The sequence number of the newest durable event before the batch.
    sa.Column("after_sequence", sa.Integer, nullable=False),
    sa.Column("pieces", sa.LargeBinary, nullable=False),
)
