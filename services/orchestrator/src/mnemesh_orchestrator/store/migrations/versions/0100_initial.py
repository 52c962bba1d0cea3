"""Creates the tables of agents, conversations, runs with their progress, groups and models."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None

_TYPES = {
    "text": sa.Text, "bool": sa.Boolean, "bytes": sa.LargeBinary, "int": sa.Integer, "long": sa.BigInteger,
    "time": UtcDateTime,
}  # fmt: skip


def upgrade() -> None:
    _create_tables()
    _create_indexes()
    _create_schedules()
    _create_audit_entries()
    _create_webhooks()


def _create_tables() -> None:
    _table(
        "agents",
        "id text key, organization_id text, name text, type text, state text, hidden bool, document bytes, "
        "creation bytes?, last_stop_reason text?, last_run_completed_at time?, last_run_ms int?, corrections bytes?, "
        "created_at time, updated_at time",
    )
    _table("extraction_usage", "organization_id text key, day text key, agent_id text key, calls long, tokens long")
    _table(
        "groups",
        "id text key, organization_id text, state text, manager_type text, manager_agent_id text?, hidden bool, "
        "project_id text?, template_id text?, base_template_id text?, deployment_id text?, document bytes, "
        "change bytes?, turns_counter long = 0, seen_sequence_id long = 0, processed_sequence_id long = 0, "
        "last_processed_message_id text?, last_turn_at time?, last_sleeptime_at time?, sleeptime_due_at time?, "
        "created_at time, updated_at time",
    )
    _table(
        "identities",
        "id text key, organization_id text, project_id text, identifier_key text, name text, type text, "
        "document bytes, created_at time, updated_at time",
    )
    _table("model_overrides", "organization_id text key, handle text key, document bytes, updated_at time")
    _table("model_revisions", "organization_id text key, revision long")
    _table(
        "providers",
        "id text key, organization_id text, name text, document bytes, created_at time, updated_at time",
    )
    _table(
        "request_ledger",
        "organization_id text key, method text key, request_id text key, fingerprint text, result_ids text, "
        "created_at time",
    )
    _table(
        "run_batches",
        "id text key, organization_id text, subject_id text, request_id text?, request_fingerprint text?, "
        "was_cancelled bool, created_at time",
    )
    _table(
        "runs",
        "id text key, organization_id text, subject_id text, agent_id text, conversation_id text, group_id text?, "
        "parent_run_id text?, origin text = client, status text, stop_reason text?, background bool, "
        "cancel_requested bool = false, claims int = 0, progress long = 0, stalled_claims int = 0, queue_number long, "
        "creation_number long = 0, request_method text?, request_id text?, request_fingerprint text?, "
        "first_run_id text?, batch_id text?, pool text?, input_unrecorded bool = false, document bytes, "
        "outcome bytes?, cost_nano_usd long?, created_at time, updated_at time",
    )
    _table("sleeptime_settings", "organization_id text key, max_concurrent_runs int?, updated_at time")
    _table(
        "agent_imports",
        "organization_id text key, request_id text key, agent_id text of agents, is_done bool, document bytes, "
        "updated_at time",
    )
    _table(
        "budgets",
        "id text key, organization_id text, agent_id text? of agents, limits bytes, agent_limits bytes, "
        "max_concurrent_runs int?, usage bytes, created_at time, updated_at time",
    )
    _table("agent_links", "organization_id text key, kind text key, value text key, agent_id text key of agents")
    _table("agent_tags", "organization_id text key, tag text key, agent_id text key of agents")
    _table(
        "conversations",
        "id text key, organization_id text, agent_id text? of agents, group_id text? of groups, is_default bool, "
        "state text = active, archived bool, summary text?, client_key text?, document bytes, creation bytes?, "
        "last_message_at time?, created_at time, updated_at time, epoch long, epoch_lead long = 0, lease_owner text?, "
        "lease_run_id text?, lease_expires_at time?, next_queue_number long",
    )
    _table("events", "run_id text key of runs, sequence int key, step_id text?, body bytes, created_at time")
    _table("group_members", "group_id text key of groups, agent_id text key of agents, position int")
    _table(
        "journal",
        "run_id text key of runs, step_id text key, kind text key, ordinal int key, epoch long, entry bytes",
    )
    _table(
        "memory_extractions",
        "agent_id text key of agents, organization_id text, turns long = 0, processed_sequence_id long = 0, "
        "due_at time?, epoch long = 0, claim_owner text?, claim_expires_at time?, result bytes?, failures int = 0",
    )
    _table("run_deltas", "run_id text key of runs, epoch long key, last long key, after_sequence int, pieces bytes")
    _table(
        "run_otids",
        "conversation_id text key, otid text key, run_id text of runs, message_hash text, input_hash text",
    )
    _table(
        "step_traces",
        "step_id text key, run_id text of runs, request bytes, response bytes, model_ms int, created_at time",
    )
    _table(
        "steps",
        "id text key, organization_id text, run_id text of runs, agent_id text, number int, model text, "
        "feedback text?, trace_id text?, document bytes, created_at time",
    )
    _table(
        "approvals",
        "id text key, organization_id text, agent_id text, conversation_id text of conversations, run_id text, "
        "state text, call_ids text, document bytes, decisions bytes?, decided_by_run_id text?, expires_at time?, "
        "created_at time, decided_at time?",
    )
    _table(
        "slot_waits",
        "id text key, conversation_id text of conversations, queue_number long, owner text, expires_at time",
    )
    _table("step_tags", "tag text key, step_id text key of steps")


def _create_audit_entries() -> None:
    _table(
        "audit_entries",
        "organization_id text key, created_at time key, id text key, subject_id text, role text, method text, "
        "resource_ids text, correlation_id text, request_id text",
    )
    _index("audit_entries", "ix_audit_entries_created_at", "created_at")


def _create_indexes() -> None:
    _index("agents", "agents_by_creation", "organization_id, created_at, id")
    _index("agents", "agents_by_state", "state")
    _index("groups", "groups_by_creation", "organization_id, created_at, id")
    _index("groups", "groups_by_manager", "manager_agent_id")
    _index("groups", "groups_by_update", "organization_id, updated_at, id")
    _index("groups", "groups_sleeptime_due", "sleeptime_due_at", "sleeptime_due_at IS NOT NULL")
    _index("groups", "groups_unfinished", "created_at", "state <> 'active'")
    _index("identities", "identities_by_creation", "organization_id, created_at, id")
    _index("identities", "identities_by_key", "organization_id, project_id, identifier_key", unique=True)
    _index("identities", "identities_by_name", "organization_id, name, id")
    _index("identities", "identities_by_update", "organization_id, updated_at, id")
    _index("providers", "providers_by_name", "organization_id, name", unique=True)
    _index("request_ledger", "ix_request_ledger_created_at", "created_at")
    _index("run_batches", "run_batches_by_creation", "organization_id, created_at, id")
    _index("run_batches", "run_batches_by_request", "organization_id, request_id", unique=True)
    _index("runs", "runs_by_agent_number", "agent_id, creation_number, id")
    _index("runs", "runs_by_batch", "batch_id, creation_number", "batch_id IS NOT NULL")
    _index("runs", "runs_by_group", "group_id, creation_number", "group_id IS NOT NULL")
    _index("runs", "runs_by_number", "organization_id, creation_number, id")
    _index("runs", "runs_by_parent", "parent_run_id, creation_number", "parent_run_id IS NOT NULL")
    _index("runs", "runs_by_request", "organization_id, request_method, request_id", unique=True)
    _index("runs", "runs_one_running", "conversation_id", "status = 'running'", unique=True)
    _index(
        "runs",
        "runs_pools",
        "organization_id, pool, status, creation_number",
        "pool IS NOT NULL AND status IN ('created', 'running')",
    )
    _index("runs", "runs_retries", "first_run_id, queue_number", "first_run_id IS NOT NULL")
    _index("runs", "runs_unfinished", "conversation_id, queue_number", "status IN ('created', 'running')")
    _index("runs", "runs_unrecorded", "updated_at", "input_unrecorded")
    _index("agent_imports", "agent_imports_by_agent", "agent_id")
    _index("agent_links", "agent_links_by_agent", "agent_id")
    _index("agent_tags", "agent_tags_by_agent", "agent_id")
    _index("budgets", "budgets_by_creation", "organization_id, created_at, id")
    _index("conversations", "conversations_by_agent", "agent_id")
    _index("conversations", "conversations_by_client_key", "agent_id, client_key", unique=True)
    _index("conversations", "conversations_by_creation", "organization_id, created_at, id")
    _index("conversations", "conversations_by_group", "group_id", "group_id IS NOT NULL")
    _index("conversations", "conversations_unfinished", "created_at", "state <> 'active'")
    _index("group_members", "group_members_by_agent", "agent_id")
    _index("memory_extractions", "memory_extractions_due", "due_at", "due_at IS NOT NULL")
    _index("run_otids", "run_otids_by_run", "run_id")
    _index("step_traces", "step_traces_by_creation", "created_at")
    _index("step_traces", "step_traces_by_run", "run_id")
    _index("steps", "steps_by_creation", "organization_id, created_at, id")
    _index("steps", "steps_by_run", "run_id, number")
    _index("steps", "steps_by_trace", "trace_id", "trace_id IS NOT NULL")
    _index("approvals", "approvals_by_agent", "agent_id")
    _index("approvals", "approvals_by_conversation", "conversation_id, created_at")
    _index("approvals", "approvals_one_pending", "conversation_id", "state = 'pending'", unique=True)
    _index("approvals", "approvals_pending", "created_at", "state = 'pending'")
    _index("slot_waits", "slot_waits_by_conversation", "conversation_id, queue_number")
    _index("step_tags", "step_tags_by_step", "step_id")


def _create_schedules() -> None:
    _table(
        "schedules",
        "id text key, organization_id text, agent_id text, conversation_id text of conversations, group_id text?, "
        "document bytes, next_run_at time?, ended_at time?, created_at time",
    )
    _index("schedules", "schedules_by_conversation", "conversation_id")
    _index("schedules", "schedules_by_creation", "organization_id, created_at, id")
    _index("schedules", "schedules_due", "next_run_at", "next_run_at IS NOT NULL")


def _create_webhooks() -> None:
    _table("webhooks", "id text key, organization_id text, enabled bool, document bytes, created_at time")
    _table(
        "callbacks",
        "target_id text key, organization_id text, subject_id text, url text?, webhook_id text? of webhooks, "
        "event text?, body bytes?, attempts int, due_at time?, sent_at time?, status int?, error text?, "
        "created_at time",
    )
    _index("webhooks", "webhooks_by_creation", "organization_id, created_at, id")
    _index("callbacks", "callbacks_by_webhook", "webhook_id, created_at, target_id", "webhook_id IS NOT NULL")
    _index("callbacks", "callbacks_due", "due_at", "due_at IS NOT NULL")


def _table(name: str, columns: str) -> None:
    """Creates a table. Each column has a name, a type (with "?" if it may be NULL), and what else applies to it:

    "key", part of the primary key; "of table", deleted with a row of that table; "= value", the default.
    """
    created = []
    for column in columns.split(", "):
        words, _, default = column.partition(" = ")
        column_name, type_, *rest = words.split(" ")
        references = [sa.ForeignKey(f"{rest[-1]}.id", ondelete="CASCADE")] if "of" in rest else []
        created.append(
            sa.Column(
                column_name,
                _TYPES[type_.removesuffix("?")],
                *references,
                primary_key="key" in rest,
                nullable=type_.endswith("?"),
                server_default=sa.false() if default == "false" else default or None,
            )
        )
    op.create_table(name, *created)


def _index(table: str, name: str, columns: str, where: str | None = None, *, unique: bool = False) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns.split(", "), unique=unique, sqlite_where=condition, postgresql_where=condition)
