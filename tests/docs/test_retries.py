"""The figures of docs/retries.md are those of the code."""

import inspect
import re
from itertools import takewhile
from pathlib import Path

import pytest
from mnemesh_archival.usecases import archives
from mnemesh_cli.directories import watch
from mnemesh_cli.supervisor import supervisor
from mnemesh_client import mnemesh as client
from mnemesh_client import patience, runs
from mnemesh_files import ingestion
from mnemesh_files.usecases import agent_files
from mnemesh_kit import outgoing, retries, server, transport
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql import postgres_engine, sqlite
from mnemesh_orchestrator import wiring as orchestrator
from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.compaction import compactor, summarizers
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.groups.speakers import MAX_SELECTIONS
from mnemesh_orchestrator.llm.port import (
    DEFAULT_LIMITS,
    MAX_INTERRUPTED_ANSWERS,
    MAX_OTHER_FORMS,
    MAX_UNUSABLE_ANSWERS,
    PROVIDER_BACKOFF,
)
from mnemesh_orchestrator.loop import model_call, services
from mnemesh_orchestrator.loop.request_assembly import MAX_COMPACTIONS
from mnemesh_orchestrator.model import webhooks
from mnemesh_orchestrator.runs import leases, worker
from mnemesh_orchestrator.usecases import memory_extractions
from mnemesh_retrieval.embedders.openai_compatible import RETRIED, OpenAICompatibleEmbedder
from mnemesh_retrieval.indexing import collections
from mnemesh_retrieval.rerankers import registry, reranking
from mnemesh_retrieval.rerankers.registry import DEFAULT_TIMEOUT_SECONDS
from mnemesh_tools.web import searcher

PAGE = (Path(__file__).parents[2] / "docs" / "retries.md").read_text()
ROWS = {
    cells[0]: cells
    for line in PAGE.splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6
}
EMBEDDER = {
    name: parameter.default for name, parameter in inspect.signature(OpenAICompatibleEmbedder).parameters.items()
}
CONNECTION = dict(transport.CHANNEL_OPTIONS)
WAITS = [wait.total_seconds() for wait in webhooks._WAITS]
CHANNEL = Backoff(
    first=float(str(retries._POLICY["initialBackoff"]).rstrip("s")),
    maximum=float(str(retries._POLICY["maxBackoff"]).rstrip("s")),
    factor=float(str(retries._POLICY["backoffMultiplier"])),
)


def grown(backoff: Backoff) -> str:
    return f"{backoff.first:g} s to {backoff.maximum:g} s, × {backoff.factor:g}"


def seconds(value: float) -> str:
    return f"{value:g} s"


@pytest.mark.parametrize(
    ("component", "attempts", "delays", "limits"),
    [
        ("gRPC channel", retries._POLICY["maxAttempts"], grown(CHANNEL), [deadlines.READ, deadlines.WRITE]),
        ("gRPC connection", None, f"{CONNECTION['grpc.initial_reconnect_backoff_ms'] / 1000:g} s", []),
        ("service call", None, grown(services.SERVICE_BACKOFF), [Config().service_retry_seconds]),
        ("tool not begun", None, grown(services.SERVICE_BACKOFF), [Config().service_retry_seconds]),
        ("journal", None, grown(services.SERVICE_BACKOFF), [Config().service_retry_seconds]),
        ("recovery", None, seconds(worker.RECOVERY_SECONDS), []),
        ("background task", None, grown(server.BACKGROUND_BACKOFF), []),
        ("optional service", None, grown(services.SERVICE_BACKOFF), [Config().degrade_seconds]),
        ("acceptance", None, grown(services.SERVICE_BACKOFF), [services.RESTART_SECONDS]),
        (
            "provider request",
            DEFAULT_LIMITS.attempts,
            grown(PROVIDER_BACKOFF),
            [DEFAULT_LIMITS.retry_budget_seconds, DEFAULT_LIMITS.total_seconds],
        ),
        ("interrupted answer", MAX_INTERRUPTED_ANSWERS, grown(PROVIDER_BACKOFF), []),
        ("unusable answer", MAX_UNUSABLE_ANSWERS, "none", []),
        ("overlong request", MAX_COMPACTIONS + 1, "none", [compactor.TOTAL_SECONDS]),
        ("history form", MAX_OTHER_FORMS + 1, "none", []),
        ("answer format", model_call.MAX_FORMAT_CALLS, "none", []),
        ("selection of a speaker", MAX_SELECTIONS, "none", []),
        (
            "memory extraction",
            summarizers._MAX_ATTEMPTS,
            "none",
            [summarizers.CALL_SECONDS, compactor.TOTAL_SECONDS],
        ),
        ("background extraction", None, grown(memory_extractions.FAILURE_DELAYS), []),
        ("callback", webhooks.MAX_ATTEMPTS, f"{seconds(WAITS[0])} to {seconds(WAITS[-1])}", []),
        (
            "embedder over HTTP",
            EMBEDDER["attempts"],
            grown(EMBEDDER["backoff"]),
            [EMBEDDER["timeout_seconds"]],
        ),
        ("reranker over HTTP", registry.ATTEMPTS, grown(registry.BACKOFF), [DEFAULT_TIMEOUT_SECONDS]),
        ("reranker", None, grown(reranking.PAUSE), []),
        ("web search", searcher.ATTEMPTS, grown(searcher.BACKOFF), [searcher.SECONDS]),
        ("PostgreSQL transaction", postgres_engine.WRITE_ATTEMPTS, grown(postgres_engine.CONFLICT_BACKOFF), []),
        ("SQLite transaction", sqlite.WRITE_ATTEMPTS, grown(sqlite.BUSY_BACKOFF), [sqlite.BUSY_TIMEOUT_MS / 1000]),
        ("indexer", None, seconds(collections.RETRY_SECONDS), []),
        ("announcement of folders", None, seconds(agent_files.RETRY_SECONDS), []),
        ("processing of files", None, seconds(ingestion.RETRY.total_seconds()), []),
        ("interrupted processing", ingestion.MAX_FAILURES, seconds(ingestion.LEASE.total_seconds()), []),
        ("removal of deleted files", None, seconds(ingestion.RETRY.total_seconds()), []),
        ("change of embedder", None, seconds(archives.RETRY_SECONDS), []),
        ("agent reconciliation", None, seconds(orchestrator.UNFINISHED_SECONDS), []),
        ("lease renewal", None, seconds(leases.RETRY_SECONDS), [leases.SAFE_SECONDS]),
        ("Python client stream", None, grown(runs._BACKOFF), [client.PATIENCE_SECONDS]),
        ("Python client call", None, grown(patience._BACKOFF), [client.PATIENCE_SECONDS]),
        ("Python client transfer", None, grown(patience._BACKOFF), [client.PATIENCE_SECONDS]),
        ("watch of a directory", None, seconds(watch.RECONNECT_SECONDS), []),
        ("supervisor", None, grown(supervisor._RESTART_BACKOFF), []),
        ("server port", None, seconds(server.PORT_POLL_SECONDS), [server.PORT_SECONDS]),
    ],
)
def test_policies_are_documented(component: str, attempts: int | None, delays: str, limits: list[float]) -> None:
    _, _, shown_attempts, shown_delays, shown_limit, _ = ROWS[component]
    assert shown_attempts == ("unlimited" if attempts is None else str(attempts))
    assert shown_delays.startswith(delays)
    for limit in limits:
        assert re.search(rf"(?<![\d.]){limit:g} s\b", shown_limit), (component, limit)


def test_every_policy_of_the_page_is_tested() -> None:
    marker = test_policies_are_documented.pytestmark[0]  # type: ignore[attr-defined]
    assert set(ROWS) - {"component", "---", "fallback model"} == {row[0] for row in marker.args[1]}


@pytest.mark.parametrize(
    ("component", "retried"),
    [("embedder over HTTP", RETRIED), ("reranker over HTTP", registry.RETRIED), ("web search", searcher.RETRIED)],
)
def test_retried_statuses(component: str, retried: frozenset[int]) -> None:
    shown = {int(number) for number in re.findall(r"\b[45]\d\d\b", ROWS[component][1])}
    assert shown == retried


def test_adapter_defaults_are_those_of_the_configuration() -> None:
    config = Config()
    assert DEFAULT_LIMITS.idle_seconds == config.provider_idle_seconds


def test_attempts_of_a_model_answer() -> None:
    parts = DEFAULT_LIMITS.attempts, MAX_COMPACTIONS, model_call.MAX_FORMAT_CALLS - 1, MAX_OTHER_FORMS
    per_model = sum(parts)
    assert f"{' + '.join(map(str, parts))} = {per_model} " in PAGE
    assert f"2 × {per_model} = {2 * per_model} " in PAGE
    delays = total(PROVIDER_BACKOFF, DEFAULT_LIMITS.attempts - 1)
    assert f"| {DEFAULT_LIMITS.attempts} | {delays:g} s of delays |" in PAGE
    assert f"| {2 * DEFAULT_LIMITS.attempts} | {2 * delays:g} s |" in PAGE


def test_attempts_of_a_service_call() -> None:
    limit = Config().service_retry_seconds
    fewest, most = calls(limit, 1.0), calls(limit, 1.0 - services.SERVICE_BACKOFF.jitter)
    attempts = int(str(retries._POLICY["maxAttempts"]))
    assert f"calls = {fewest} to {most}," in PAGE
    assert f"at most {most} × {attempts} = {most * attempts}\n" in PAGE
    assert f"at most {total(CHANNEL, attempts - 1):g} s per call" in PAGE
    start = services.RESTART_SECONDS
    assert f"{calls(start, 1.0)} or {calls(start, 1.0 - services.SERVICE_BACKOFF.jitter)} calls." in PAGE
    assert outgoing.DEADLINE_SECONDS == deadlines.WRITE


def test_delays_of_a_transaction() -> None:
    assert total(postgres_engine.CONFLICT_BACKOFF, postgres_engine.WRITE_ATTEMPTS) <= 3.4
    assert f"{sqlite.WRITE_ATTEMPTS} × {sqlite.BUSY_TIMEOUT_MS / 1000:g} s" in PAGE


def total(backoff: Backoff, count: int) -> float:
    """Returns the largest sum of the first delays."""
    return sum(min(backoff.maximum, backoff.first * backoff.factor**number) for number in range(count))


def calls(limit: float, share: float) -> int:
    """Returns the number of calls within a limit, if each delay is this share of its maximum and calls take no time."""
    waits = takewhile(lambda count: total(services.SERVICE_BACKOFF, count) * share < limit, range(10_000))
    return len(list(waits)) + 1
