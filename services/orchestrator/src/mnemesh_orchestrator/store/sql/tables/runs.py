"""The tables of runs, batches and callbacks."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata, partial_index

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    # Empty for a run of a group.
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text, nullable=False),
    # The group of a run of a group, and of the turns of its agents.
    sa.Column("group_id", sa.Text),
    # The run that started this one.
    sa.Column("parent_run_id", sa.Text),
    sa.Column("origin", sa.Text, nullable=False, server_default="client"),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("stop_reason", sa.Text),
    sa.Column("background", sa.Boolean, nullable=False),
    # Set by another process to ask the lease holder to cancel the run.
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    # The number of claims. A model that is called again after a takeover is called as a new attempt.
    sa.Column("claims", sa.Integer, nullable=False, server_default="0"),
    # The progress at the last claim, and the number of takeovers in a row that found no more of it.
    sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("stalled_claims", sa.Integer, nullable=False, server_default="0"),
    sa.Column("queue_number", sa.BigInteger, nullable=False),
    # The order of creation in the organization: microseconds of the clock, or more if the clock was set back.
    sa.Column("creation_number", sa.BigInteger, nullable=False, server_default="0"),
    # The idempotency key of a run is kept as long as the run.
    sa.Column("request_method", sa.Text),
    sa.Column("request_id", sa.Text),
    sa.Column("request_fingerprint", sa.Text),
    # The run whose input a retry has.
    sa.Column("first_run_id", sa.Text),
    # The batch that the run was started in.
    sa.Column("batch_id", sa.Text),
    # The pool that limits how many such runs execute at the same time.
    sa.Column("pool", sa.Text),
    # The run has ended, and recall may not have its input yet.
    sa.Column("input_unrecorded", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("outcome", sa.LargeBinary),
    # The cost in `outcome`, as a column to be summed. NULL if it is not known.
    sa.Column("cost_nano_usd", sa.BigInteger),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("runs_by_number", "organization_id", "creation_number", "id"),
    sa.Index("runs_by_agent_number", "agent_id", "creation_number", "id"),
    sa.Index("runs_by_request", "organization_id", "request_method", "request_id", unique=True),
    partial_index("runs_unfinished", "conversation_id", "queue_number", where="status IN ('created', 'running')"),
    partial_index("runs_retries", "first_run_id", "queue_number", where="first_run_id IS NOT NULL"),
    partial_index("runs_by_group", "group_id", "creation_number", where="group_id IS NOT NULL"),
    partial_index("runs_by_parent", "parent_run_id", "creation_number", where="parent_run_id IS NOT NULL"),
    partial_index(
        "runs_pools",
        "organization_id",
        "pool",
        "status",
        "creation_number",
        where="pool IS NOT NULL AND status IN ('created', 'running')",
    ),
    partial_index("runs_unrecorded", "updated_at", where="input_unrecorded"),
    partial_index("runs_by_batch", "batch_id", "creation_number", where="batch_id IS NOT NULL"),
    partial_index("runs_one_running", "conversation_id", where="status = 'running'", unique=True),
)

# Runs that were started together. A batch exists as long as one of its runs.
run_batches = sa.Table(
    "run_batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text),
    sa.Column("request_fingerprint", sa.Text),
    sa.Column("was_cancelled", sa.Boolean, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("run_batches_by_creation", "organization_id", "created_at", "id"),
    sa.Index("run_batches_by_request", "organization_id", "request_id", unique=True),
)

# The URLs to call when a run, or all runs of a batch, have ended; the target is the run or the batch.
callbacks = sa.Table(
    "callbacks",
    metadata,
    sa.Column("target_id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    # The time of the next attempt, if the target has ended by then; NULL after the last one.
    sa.Column("due_at", UtcDateTime),
    sa.Column("sent_at", UtcDateTime),
    sa.Column("status", sa.Integer),
    sa.Column("error", sa.Text),
    partial_index("callbacks_due", "due_at", where="due_at IS NOT NULL"),
)

run_otids = sa.Table(
    "run_otids",
    metadata,
    sa.Column("conversation_id", sa.Text, primary_key=True),
    sa.Column("otid", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    # Hashes of the message and of the whole input, as they were sent.
    sa.Column("message_hash", sa.Text, nullable=False),
    sa.Column("input_hash", sa.Text, nullable=False),
    sa.Index("run_otids_by_run", "run_id"),
)
