"""Reports of ended runs: one log line and the metrics of each."""

import structlog

from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.model.runs import Run, RunStatus

_log = structlog.get_logger("mnemesh.runs")


def report_end(run: Run, metrics: TurnMetrics) -> None:
    """Logs and counts a run whose end is stored. A failed run is logged as a warning."""
    metrics.run_ended(run)
    log = _log.warning if run.status is RunStatus.FAILED else _log.info
    log(
        "run_ended",
        run_id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        status=run.status.value,
        reason=run.stop_reason.value if run.stop_reason is not None else None,
        steps=run.step_count,
        prompt_tokens=run.usage.prompt_tokens,
        completion_tokens=run.usage.completion_tokens,
        total_tokens=run.usage.total_tokens,
        first_token_ms=run.first_token_ms,
        ms=run.total_ms,
        **({} if run.error is None else {"error": run.error.reason, "error_message": run.error.message}),
    )
