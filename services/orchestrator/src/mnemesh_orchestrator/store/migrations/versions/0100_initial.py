"""Creates the tables of agents, conversations, runs with their progress, groups and models."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None


def upgrade() -> None:
    _create_agents()
    _create_callbacks()
    _create_extraction_usage()
    _create_groups()
    _create_identities()
    _create_model_overrides()
    _create_model_revisions()
    _create_providers()
    _create_request_ledger()
    _create_run_batches()
    _create_runs()
    _create_sleeptime_settings()
    _create_agent_imports()
    _create_agent_links()
    _create_agent_tags()
    _create_conversations()
    _create_events()
    _create_group_members()
    _create_journal()
    _create_memory_extractions()
    _create_run_deltas()
    _create_run_otids()
    _create_step_traces()
    _create_steps()
    _create_approvals()
    _create_slot_waits()
    _create_step_tags()


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("creation", sa.LargeBinary),
        sa.Column("last_stop_reason", sa.Text),
        sa.Column("last_run_completed_at", UtcDateTime),
        sa.Column("last_run_ms", sa.Integer),
        sa.Column("corrections", sa.LargeBinary),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("agents_by_creation", "agents", ["organization_id", "created_at", "id"])
    op.create_index("agents_by_state", "agents", ["state"])


def _create_callbacks() -> None:
    op.create_table(
        "callbacks",
        sa.Column("target_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", UtcDateTime),
        sa.Column("sent_at", UtcDateTime),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Text),
    )
    _create_partial_index("callbacks_due", "callbacks", ["due_at"], "due_at IS NOT NULL")


def _create_extraction_usage() -> None:
    op.create_table(
        "extraction_usage",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )


def _create_groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("manager_type", sa.Text, nullable=False),
        sa.Column("manager_agent_id", sa.Text),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("change", sa.LargeBinary),
        sa.Column("turns_counter", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("seen_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_processed_message_id", sa.Text),
        sa.Column("last_turn_at", UtcDateTime),
        sa.Column("last_sleeptime_at", UtcDateTime),
        sa.Column("sleeptime_due_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("groups_by_creation", "groups", ["organization_id", "created_at", "id"])
    op.create_index("groups_by_manager", "groups", ["manager_agent_id"])
    op.create_index("groups_by_update", "groups", ["organization_id", "updated_at", "id"])
    _create_partial_index("groups_sleeptime_due", "groups", ["sleeptime_due_at"], "sleeptime_due_at IS NOT NULL")
    _create_partial_index("groups_unfinished", "groups", ["created_at"], "state <> 'active'")


def _create_identities() -> None:
    op.create_table(
        "identities",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("identifier_key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("identities_by_creation", "identities", ["organization_id", "created_at", "id"])
    op.create_index("identities_by_key", "identities", ["organization_id", "project_id", "identifier_key"], unique=True)
    op.create_index("identities_by_name", "identities", ["organization_id", "name", "id"])
    op.create_index("identities_by_update", "identities", ["organization_id", "updated_at", "id"])


def _create_model_overrides() -> None:
    op.create_table(
        "model_overrides",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("handle", sa.Text, primary_key=True),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )


def _create_model_revisions() -> None:
    op.create_table(
        "model_revisions",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )


def _create_providers() -> None:
    op.create_table(
        "providers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("providers_by_name", "providers", ["organization_id", "name"], unique=True)


def _create_request_ledger() -> None:
    op.create_table(
        "request_ledger",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("method", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result_ids", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_request_ledger_created_at", "request_ledger", ["created_at"])


def _create_run_batches() -> None:
    op.create_table(
        "run_batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("request_fingerprint", sa.Text),
        sa.Column("was_cancelled", sa.Boolean, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("run_batches_by_creation", "run_batches", ["organization_id", "created_at", "id"])
    op.create_index("run_batches_by_request", "run_batches", ["organization_id", "request_id"], unique=True)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("group_id", sa.Text),
        sa.Column("parent_run_id", sa.Text),
        sa.Column("origin", sa.Text, nullable=False, server_default="client"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("stop_reason", sa.Text),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("claims", sa.Integer, nullable=False, server_default="0"),
        sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("stalled_claims", sa.Integer, nullable=False, server_default="0"),
        sa.Column("queue_number", sa.BigInteger, nullable=False),
        sa.Column("creation_number", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("request_method", sa.Text),
        sa.Column("request_id", sa.Text),
        sa.Column("request_fingerprint", sa.Text),
        sa.Column("first_run_id", sa.Text),
        sa.Column("batch_id", sa.Text),
        sa.Column("pool", sa.Text),
        sa.Column("input_unrecorded", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("cost_nano_usd", sa.BigInteger),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("runs_by_agent_number", "runs", ["agent_id", "creation_number", "id"])
    _create_partial_index("runs_by_batch", "runs", ["batch_id", "creation_number"], "batch_id IS NOT NULL")
    _create_partial_index("runs_by_group", "runs", ["group_id", "creation_number"], "group_id IS NOT NULL")
    op.create_index("runs_by_number", "runs", ["organization_id", "creation_number", "id"])
    _create_partial_index("runs_by_parent", "runs", ["parent_run_id", "creation_number"], "parent_run_id IS NOT NULL")
    op.create_index("runs_by_request", "runs", ["organization_id", "request_method", "request_id"], unique=True)
    _create_partial_index("runs_one_running", "runs", ["conversation_id"], "status = 'running'", unique=True)
    _create_partial_index(
        "runs_pools",
        "runs",
        ["organization_id", "pool", "status", "creation_number"],
        "pool IS NOT NULL AND status IN ('created', 'running')",
    )
    _create_partial_index("runs_retries", "runs", ["first_run_id", "queue_number"], "first_run_id IS NOT NULL")
    _create_partial_index(
        "runs_unfinished", "runs", ["conversation_id", "queue_number"], "status IN ('created', 'running')"
    )
    _create_partial_index("runs_unrecorded", "runs", ["updated_at"], "input_unrecorded")


def _create_sleeptime_settings() -> None:
    op.create_table(
        "sleeptime_settings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("max_concurrent_runs", sa.Integer),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )


def _create_agent_imports() -> None:
    op.create_table(
        "agent_imports",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("agent_imports_by_agent", "agent_imports", ["agent_id"])


def _create_agent_links() -> None:
    op.create_table(
        "agent_links",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("agent_links_by_agent", "agent_links", ["agent_id"])


def _create_agent_tags() -> None:
    op.create_table(
        "agent_tags",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("agent_tags_by_agent", "agent_tags", ["agent_id"])


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE")),
        sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE")),
        sa.Column("is_default", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="active"),
        sa.Column("archived", sa.Boolean, nullable=False),
        sa.Column("summary", sa.Text),
        sa.Column("client_key", sa.Text),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("creation", sa.LargeBinary),
        sa.Column("last_message_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("epoch_lead", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_run_id", sa.Text),
        sa.Column("lease_expires_at", UtcDateTime),
        sa.Column("next_queue_number", sa.BigInteger, nullable=False),
    )
    op.create_index("conversations_by_agent", "conversations", ["agent_id"])
    op.create_index("conversations_by_client_key", "conversations", ["agent_id", "client_key"], unique=True)
    op.create_index("conversations_by_creation", "conversations", ["organization_id", "created_at", "id"])
    _create_partial_index("conversations_by_group", "conversations", ["group_id"], "group_id IS NOT NULL")
    _create_partial_index("conversations_unfinished", "conversations", ["created_at"], "state <> 'active'")


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("step_id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )


def _create_group_members() -> None:
    op.create_table(
        "group_members",
        sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("group_members_by_agent", "group_members", ["agent_id"])


def _create_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("step_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("entry", sa.LargeBinary, nullable=False),
    )


def _create_memory_extractions() -> None:
    op.create_table(
        "memory_extractions",
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("turns", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("due_at", UtcDateTime),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("claim_owner", sa.Text),
        sa.Column("claim_expires_at", UtcDateTime),
        sa.Column("result", sa.LargeBinary),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    )
    _create_partial_index("memory_extractions_due", "memory_extractions", ["due_at"], "due_at IS NOT NULL")


def _create_run_deltas() -> None:
    op.create_table(
        "run_deltas",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("after_sequence", sa.Integer, nullable=False),
        sa.Column("pieces", sa.LargeBinary, nullable=False),
    )


def _create_run_otids() -> None:
    op.create_table(
        "run_otids",
        sa.Column("conversation_id", sa.Text, primary_key=True),
        sa.Column("otid", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("message_hash", sa.Text, nullable=False),
        sa.Column("input_hash", sa.Text, nullable=False),
    )
    op.create_index("run_otids_by_run", "run_otids", ["run_id"])


def _create_step_traces() -> None:
    op.create_table(
        "step_traces",
        sa.Column("step_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("model_ms", sa.Integer, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("step_traces_by_creation", "step_traces", ["created_at"])
    op.create_index("step_traces_by_run", "step_traces", ["run_id"])


def _create_steps() -> None:
    op.create_table(
        "steps",
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
    )
    op.create_index("steps_by_creation", "steps", ["organization_id", "created_at", "id"])
    op.create_index("steps_by_run", "steps", ["run_id", "number"])
    _create_partial_index("steps_by_trace", "steps", ["trace_id"], "trace_id IS NOT NULL")


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("call_ids", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("decisions", sa.LargeBinary),
        sa.Column("decided_by_run_id", sa.Text),
        sa.Column("expires_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("decided_at", UtcDateTime),
    )
    op.create_index("approvals_by_agent", "approvals", ["agent_id"])
    op.create_index("approvals_by_conversation", "approvals", ["conversation_id", "created_at"])
    _create_partial_index("approvals_one_pending", "approvals", ["conversation_id"], "state = 'pending'", unique=True)
    _create_partial_index("approvals_pending", "approvals", ["created_at"], "state = 'pending'")


def _create_slot_waits() -> None:
    op.create_table(
        "slot_waits",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("queue_number", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    op.create_index("slot_waits_by_conversation", "slot_waits", ["conversation_id", "queue_number"])


def _create_step_tags() -> None:
    op.create_table(
        "step_tags",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("step_id", sa.Text, sa.ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("step_tags_by_step", "step_tags", ["step_id"])


def _create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
