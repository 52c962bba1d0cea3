"""The tables. Fields that lists filter or sort by are columns; the others are a JSON document."""

from mnemesh_orchestrator.store.sql.tables.agents import agent_imports, agent_links, agent_tags, agents, identities
from mnemesh_orchestrator.store.sql.tables.conversations import approvals, conversations, slot_waits
from mnemesh_orchestrator.store.sql.tables.declaration import metadata, request_ledger
from mnemesh_orchestrator.store.sql.tables.extractions import extraction_usage, memory_extractions
from mnemesh_orchestrator.store.sql.tables.groups import group_members, groups, sleeptime_settings
from mnemesh_orchestrator.store.sql.tables.models import model_overrides, model_revisions, providers
from mnemesh_orchestrator.store.sql.tables.progress import events, journal, run_deltas, step_tags, step_traces, steps
from mnemesh_orchestrator.store.sql.tables.runs import callbacks, run_batches, run_otids, runs

__all__ = [
    "agent_imports",
    "agent_links",
    "agent_tags",
    "agents",
    "approvals",
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
    "sleeptime_settings",
    "slot_waits",
    "step_tags",
    "step_traces",
    "steps",
]
