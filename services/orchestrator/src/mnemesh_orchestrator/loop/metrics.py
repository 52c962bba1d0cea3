"""The metrics of turns: runs, calls of models and tools, and takeovers. The labels have a bounded number of values."""

import asyncio
from collections.abc import Collection
from typing import Final

from mnemesh_kit.errors import typed_error
from mnemesh_kit.metrics import SECONDS, Counter, Histogram, Metric
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.runs import Run

MAX_MODELS: Final = 100
"""The number of models that get label values of their own. Organizations may register providers and models."""
OTHER: Final = "other"
CUSTOM: Final = "custom"
OK: Final = "OK"


class TurnMetrics:
    """Counts what the runs of this process do."""

    def __init__(self) -> None:
        self.runs = Counter("mnemesh_runs", "Ended runs by status and stop reason.", ["status", "reason"])
        self.run_seconds = Histogram("mnemesh_run_seconds", "Duration of runs that were executed.", ["status"])
        self.provider_seconds = Histogram(
            "mnemesh_provider_seconds",
            "Duration of calls of models, with the adapter's repetitions, by outcome: OK or an error reason.",
            ["provider", "model", "outcome"],
            buckets=(*SECONDS, 900.0),
        )
        self.provider_tokens = Counter(
            "mnemesh_provider_tokens",
            "Tokens that providers reported. The kind cached_input is part of prompt, reasoning part of completion.",
            ["provider", "model", "kind"],
        )
        self.tool_runs = Counter(
            "mnemesh_tool_runs",
            "Executed tool calls. The tool is the name of a built-in tool, or custom.",
            ["tool", "outcome"],
        )
        self.takeovers = Counter(
            "mnemesh_lease_takeovers", "Runs that this process took up after an earlier holder of their lease."
        )
        self.extractions = Counter(
            "mnemesh_memory_extractions",
            "Ranges of messages whose facts were to be extracted, by outcome: processed; unreadable, after which the "
            "range stays open; or failed.",
            ["outcome"],
        )
        self._models: set[tuple[str, str]] = set()

    @property
    def all(self) -> tuple[Metric, ...]:
        """The metrics to register."""
        counted = (self.runs, self.run_seconds, self.provider_seconds, self.provider_tokens)
        return (*counted, self.tool_runs, self.takeovers, self.extractions)

    def run_ended(self, run: Run) -> None:
        """Counts a run that has ended."""
        reason = run.stop_reason.value if run.stop_reason is not None else ""
        self.runs.inc(run.status.value, reason)
        if run.total_ms is not None:
            self.run_seconds.observe(run.total_ms / 1e3, run.status.value)

    def model_called(self, model: ModelInfo, seconds: float, usage: Usage, error: BaseException | None = None) -> None:
        """Counts a call of a model, and the tokens that its provider reported."""
        labels = self._model_labels(model)
        self.provider_seconds.observe(seconds, *labels, _outcome(error))
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached_input", usage.cached_input_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self.provider_tokens.inc(*labels, kind, by=tokens)

    def memories_extracted(self, outcome: str) -> None:
        """Counts a range of messages whose extraction ended."""
        self.extractions.inc(outcome)

    def tool_called(self, name: str, built_in: Collection[str], *, ok: bool) -> None:
        """Counts a tool call that was executed."""
        self.tool_runs.inc(name if name in built_in else CUSTOM, "success" if ok else "error")

    def _model_labels(self, model: ModelInfo) -> tuple[str, str]:
        labels = model.provider, model.provider_model
        if labels not in self._models:
            if len(self._models) == MAX_MODELS:
                return OTHER, OTHER
            self._models.add(labels)
        return labels


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
        return "CANCELLED"
    return typed_error(error).reason
