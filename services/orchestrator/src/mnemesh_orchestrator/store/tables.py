"""The tables. Fields that lists filter or sort by are columns; the others are a JSON document."""

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.owners import Owners

metadata = sa.MetaData()

request_ledger = ledger_table(metadata)
audit_entries = audit_table(metadata)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("hidden", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation request of a CREATING agent, or the scope of the deletion of a DELETING one, so that any process can
    # finish it.
    sa.Column("creation", sa.LargeBinary),
    sa.Column("last_stop_reason", sa.Text),
    sa.Column("last_run_completed_at", UtcDateTime),
    sa.Column("last_run_ms", sa.Integer),
    # The corrections of token estimates by model.
    sa.Column("corrections", sa.LargeBinary),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("agents_by_creation", "organization_id", "created_at", "id"),
    sa.Index("agents_by_state", "state"),
)

# The imports of agents: their progress, and the report once they are done.
agent_imports = sa.Table(
    "agent_imports",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("is_done", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("agent_imports_by_agent", "agent_id"),
)

agent_tags = sa.Table(
    "agent_tags",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("agent_tags_by_agent", "agent_id"),
)

# The index of agents by kind and value; see agent_rows.py.
agent_links = sa.Table(
    "agent_links",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("agent_links_by_agent", "agent_id"),
)

identities = sa.Table(
    "identities",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("identifier_key", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("identities_by_key", "organization_id", "project_id", "identifier_key", unique=True),
    sa.Index("identities_by_creation", "organization_id", "created_at", "id"),
    sa.Index("identities_by_update", "organization_id", "updated_at", "id"),
    sa.Index("identities_by_name", "organization_id", "name", "id"),
)

# Work other than runs that waits for the lease of a conversation. A position that is not extended expires.
slot_waits = sa.Table(
    "slot_waits",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("queue_number", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Index("slot_waits_by_conversation", "conversation_id", "queue_number"),
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

# The members of groups, in order of their position, without the manager.
group_members = sa.Table(
    "group_members",
    metadata,
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Index("group_members_by_agent", "agent_id"),
)

sleeptime_settings = sa.Table(
    "sleeptime_settings",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("max_concurrent_runs", sa.Integer),
    sa.Column("updated_at", UtcDateTime, nullable=False),
)

# Calls and tokens of extractions per UTC day, as "YYYY-MM-DD".
extraction_usage = sa.Table(
    "extraction_usage",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)

# What organizations and agents may use, and what they have used. The budget of an organization has no agent.
budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE")),
    sa.Column("limits", sa.LargeBinary, nullable=False),
    sa.Column("agent_limits", sa.LargeBinary, nullable=False),
    sa.Column("max_concurrent_runs", sa.Integer),
    sa.Column("usage", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("budgets_by_creation", "organization_id", "created_at", "id"),
)

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

__all__ = [
    "agent_imports",
    "agent_links",
    "agent_tags",
    "agents",
    "approvals",
    "budgets",
    "callbacks",
    "conversations",
    "events",
    "extraction_usage",
    "group_members",
    "groups",
    "identities",
    "journal",
    "memory_extractions",
    "metadata",
    "model_overrides",
    "model_revisions",
    "providers",
    "request_ledger",
    "run_batches",
    "run_deltas",
    "run_otids",
    "runs",
    "schedules",
    "sleeptime_settings",
    "slot_waits",
    "step_tags",
    "step_traces",
    "steps",
    "webhooks",
]


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Returns an index of the rows that meet a condition."""
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


# A conversation belongs to an agent. That of a group has no window: it is the queue of the runs of the group.
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE")),
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE")),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="active"),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("summary", sa.Text),
    # The client's name for the conversation. NULL once it is being deleted, so that the name can be used again.
    sa.Column("client_key", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation request of a CREATING conversation, so that any process can finish it.
    sa.Column("creation", sa.LargeBinary),
    sa.Column("last_message_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    # The lease: its holder, its run or other work, and its expiry.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    # By how much the epochs of writes to recall are above those of leases: recall may know higher ones than this
    # database, which was restored from a backup.
    sa.Column("epoch_lead", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_run_id", sa.Text),
    sa.Column("lease_expires_at", UtcDateTime),
    sa.Column("next_queue_number", sa.BigInteger, nullable=False),
    sa.Index("conversations_by_agent", "agent_id"),
    sa.Index("conversations_by_client_key", "agent_id", "client_key", unique=True),
    partial_index("conversations_by_group", "group_id", where="group_id IS NOT NULL"),
    sa.Index("conversations_by_creation", "organization_id", "created_at", "id"),
    partial_index("conversations_unfinished", "created_at", where="state <> 'active'"),
)


approvals = sa.Table(
    "approvals",
    metadata,
    # The id of the stored message that requests the approval.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # The sorted ids of the calls, separated by blanks, for answers that name no approval.
    sa.Column("call_ids", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("decisions", sa.LargeBinary),
    sa.Column("decided_by_run_id", sa.Text),
    # The time at which a pending approval is denied; NULL follows the server's setting.
    sa.Column("expires_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("decided_at", UtcDateTime),
    sa.Index("approvals_by_conversation", "conversation_id", "created_at"),
    sa.Index("approvals_by_agent", "agent_id"),
    partial_index("approvals_one_pending", "conversation_id", where="state = 'pending'", unique=True),
    partial_index("approvals_pending", "created_at", where="state = 'pending'"),
)


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


# URLs that are told what happens in an organization. The secret in the document is sealed.
webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("webhooks_by_creation", "organization_id", "created_at", "id"),
)


# Calls of URLs. The target is the run, or the batch whose runs, have to end first; or, for an event of a webhook, the
# id of the delivery.
callbacks = sa.Table(
    "callbacks",
    metadata,
    sa.Column("target_id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    # NULL for an event: the webhook has the URL.
    sa.Column("url", sa.Text),
    sa.Column("webhook_id", sa.Text, sa.ForeignKey("webhooks.id", ondelete="CASCADE")),
    sa.Column("event", sa.Text),
    sa.Column("body", sa.LargeBinary),
    sa.Column("attempts", sa.Integer, nullable=False),
    # The time of the next attempt, if the target has ended by then; NULL after the last one.
    sa.Column("due_at", UtcDateTime),
    sa.Column("sent_at", UtcDateTime),
    sa.Column("status", sa.Integer),
    sa.Column("error", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    partial_index("callbacks_by_webhook", "webhook_id", "created_at", "target_id", where="webhook_id IS NOT NULL"),
    partial_index("callbacks_due", "due_at", where="due_at IS NOT NULL"),
)


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


groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("manager_type", sa.Text, nullable=False),
    # The manager, also after it was deleted.
    sa.Column("manager_agent_id", sa.Text),
    sa.Column("hidden", sa.Boolean, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("template_id", sa.Text),
    sa.Column("base_template_id", sa.Text),
    sa.Column("deployment_id", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation or the change of members that is in progress, so that any process can finish it.
    sa.Column("change", sa.LargeBinary),
    # Sleeptime groups: completed turns of the manager, the newest sequence id of its messages, the one up to which
    # transcripts have them, and times of the last turn and the last sleeptime runs.
    sa.Column("turns_counter", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("seen_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_processed_message_id", sa.Text),
    sa.Column("last_turn_at", UtcDateTime),
    sa.Column("last_sleeptime_at", UtcDateTime),
    # The time at which the interval or the inactivity of the group is to be checked.
    sa.Column("sleeptime_due_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("groups_by_creation", "organization_id", "created_at", "id"),
    sa.Index("groups_by_update", "organization_id", "updated_at", "id"),
    sa.Index("groups_by_manager", "manager_agent_id"),
    partial_index("groups_unfinished", "created_at", where="state <> 'active'"),
    partial_index("groups_sleeptime_due", "sleeptime_due_at", where="sleeptime_due_at IS NOT NULL"),
)


# Runs that start at given times. A schedule is deleted with its conversation, that of a group with the group's queue.
schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    # Empty for a schedule of a group.
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("group_id", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # NULL while the schedule is paused, and once it has ended.
    sa.Column("next_run_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("schedules_by_creation", "organization_id", "created_at", "id"),
    sa.Index("schedules_by_conversation", "conversation_id"),
    partial_index("schedules_due", "next_run_at", where="next_run_at IS NOT NULL"),
)


# The progress of the extraction of facts from an agent's messages: completed turns since the last one, the newest
# processed sequence id, and what was extracted from the next messages until recall has stored it.
memory_extractions = sa.Table(
    "memory_extractions",
    metadata,
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("turns", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("due_at", UtcDateTime),
    # The process that extracts now. Each claim has a higher epoch.
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("claim_owner", sa.Text),
    sa.Column("claim_expires_at", UtcDateTime),
    sa.Column("result", sa.LargeBinary),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    partial_index("memory_extractions_due", "due_at", where="due_at IS NOT NULL"),
)


def owners(database: Database) -> Owners:
    """Returns what finds the agents to which things belong, identities to those that have them. Groups have none."""
    tables = {"run": runs, "step": steps, "conv": conversations, "schedule": schedules}
    selects = {kind: sa.select(each.c.organization_id, each.c.id, each.c.agent_id) for kind, each in tables.items()}
    links = agent_links.c
    identity = sa.select(links.organization_id, links.value, links.agent_id).where(links.kind == "identity")
    return Owners(database, identity=identity, **selects)
