"""The use of a reranker in a search: within a time limit, and without an effect on the search if it fails."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import structlog
from mnemesh_kit.metrics import Counter, Histogram, Metric
from mnemesh_kit.retries import Backoff

from mnemesh_retrieval.errors import RerankerError, RerankerMisconfigured, RerankerRejected, RerankerUnavailable
from mnemesh_retrieval.ranking.scores import EXACT, Id, Ranked
from mnemesh_retrieval.rerankers.registry import DEFAULT_TIMEOUT_SECONDS, Reranker

FAILURES: Final = 3
PAUSE: Final = Backoff(first=5.0, maximum=60.0, jitter=0.25)


class Admission(Enum):
    """The admission of a call."""

    USUAL = "usual"
    TRIAL = "trial"


class Breaker:
    """Decides whether a call is attempted.

    After `failures` in a row it refuses calls for a pause. Then it admits one trial call: its success admits all again,
    its failure starts a longer pause. For one event loop.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        pause: Backoff = PAUSE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = failures
        self._pause = pause
        self._monotonic = monotonic
        self._failures = 0
        self._pauses = 0
        self._until = 0.0
        self._trial_runs = False

    @property
    def is_open(self) -> bool:
        """Whether the last calls failed so often that only trial calls are admitted."""
        return self._failures >= self._allowed

    def admit(self) -> Admission | None:
        """Returns how a call is admitted now, None if it is refused.

        Each admitted call ends with `succeeded`, `failed` or `abandoned`.
        """
        if not self.is_open:
            return Admission.USUAL
        if self._trial_runs or self._monotonic() < self._until:
            return None
        self._trial_runs = True
        return Admission.TRIAL

    def succeeded(self) -> None:
        """Records a success."""
        self._failures = self._pauses = 0
        self._trial_runs = False

    def failed(self, admission: Admission) -> float | None:
        """Records a failure. Returns the seconds of the pause that it starts, None if it starts none."""
        if admission is Admission.TRIAL:
            self._trial_runs = False
        self._failures += 1
        if admission is Admission.USUAL and self._failures != self._allowed:
            return None
        self._pauses += 1
        pause = self._pause.delay(self._pauses)
        self._until = self._monotonic() + pause
        return pause

    def abandoned(self, admission: Admission) -> None:
        """Records that the caller gave up, which says nothing about the called service."""
        if admission is Admission.TRIAL:
            self._trial_runs = False


CANDIDATES: Final = 50
MAX_CANDIDATES: Final = 100
QUERY_CHARACTERS: Final = 1_000
TEXT_CHARACTERS: Final = 2_000
"""The length of the parts of a query and of a text that the reranker reads."""

_log = structlog.get_logger("mnemesh.reranking")


class Reranking:
    """Orders the best candidates of searches by a reranker, if one is configured.

    A failure or an answer after the time limit leaves the first ranking. After repeated failures the reranker is not
    called for a while, so that it does not delay every search by the time limit.
    """

    def __init__(
        self,
        reranker: Reranker | None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        candidates: int = CANDIDATES,
        breaker: Breaker | None = None,
    ) -> None:
        self._reranker = reranker
        self._timeout = timeout_seconds
        self._breaker = breaker or Breaker()
        self.candidates = candidates
        """The number of candidates that are reranked; a search should select as many."""
        self.outcomes = Counter("mnemesh_reranker_calls", "Searches to rerank, by outcome.", ["outcome"])
        self.seconds = Histogram("mnemesh_reranker_seconds", "Duration of successful calls of the reranker.")

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics; none without a reranker."""
        return (self.outcomes, self.seconds) if self._reranker is not None else ()

    def is_requested(self, requested: bool | None) -> bool:
        """Returns whether a search is to be reranked: if there is a reranker, and the search does not refuse it."""
        return self._reranker is not None and requested is not False

    def depth(self, limit: int, requested: bool | None) -> int:
        """Returns the number of best candidates that a search needs: those that are returned or reranked."""
        return max(limit, self.candidates) if self.is_requested(requested) else limit

    async def rerank(
        self, queries: Sequence[str], ranking: Sequence[Ranked[Id]], texts: Mapping[Id, str]
    ) -> list[Ranked[Id]] | None:
        """Orders the first `candidates` of a ranking. The rest follows in its order.

        Args:
            queries: the query and further wordings of it, which are read as one text.
            ranking: the candidates, best first.
            texts: the texts of at least the first `candidates` as a person would read them; see `readable`. Candidates
                without a text stay behind the others.

        Returns:
            The new ranking, or None if the first one stays: there is nothing to order, the reranker failed or took too
            long, or it is not called at present.
        """
        first = [each for each in ranking[: self.candidates] if each.id in texts]
        query = "\n".join(query.strip() for query in queries if query.strip())[:QUERY_CHARACTERS]
        if self._reranker is None or len(first) < 2 or not query:
            return None
        admission = self._breaker.admit()
        if admission is None:
            self.outcomes.inc("paused")
            return None
        read = [texts[each.id][:TEXT_CHARACTERS] for each in first]
        scores = await self._scores(self._reranker, admission, query, read)
        return (
            None if scores is None else _ordered(ranking, dict(zip((each.id for each in first), scores, strict=True)))
        )

    async def close(self) -> None:
        """Closes the reranker."""
        if self._reranker is not None:
            await self._reranker.close()

    async def _scores(
        self, reranker: Reranker, admission: Admission, query: str, texts: list[str]
    ) -> list[float] | None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                scores = await reranker.rerank(query, texts)
            if len(scores) != len(texts):
                raise RerankerError(f"reranker {reranker.handle}: {len(scores)} scores for {len(texts)} texts")
        except (TimeoutError, RerankerError) as error:
            self._failed(reranker, admission, error)
            return None
        except BaseException:
            self._breaker.abandoned(admission)
            raise
        self._succeeded(reranker, time.perf_counter() - started)
        return scores

    def _succeeded(self, reranker: Reranker, seconds: float) -> None:
        if self._breaker.is_open:
            _log.info("reranker_resumed", reranker=reranker.handle)
        self._breaker.succeeded()
        self.outcomes.inc("reranked")
        self.seconds.observe(seconds)

    def _failed(self, reranker: Reranker, admission: Admission, error: Exception) -> None:
        outcome = _outcome(error)
        self.outcomes.inc(outcome)
        pause = self._breaker.failed(admission)
        text = str(error) or f"no answer within {self._timeout:g} s"
        _log.warning(
            "rerank_failed",
            reranker=reranker.handle,
            outcome=outcome,
            error=text,
            paused_seconds=None if pause is None else round(pause, 1),
        )


def readable(speaker: str | None, text: str, question: str | None = None) -> str:
    """Returns a text as a person would read it: with the speaker, and after the question that it may answer."""
    said = f"{speaker}: {text}" if speaker else text
    return f"{question}\n{said}" if question else said


def _outcome(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "timeout"
        case RerankerUnavailable():
            return "unavailable"
        case RerankerRejected() | RerankerMisconfigured():
            return "rejected"
    return "invalid"


def _ordered(ranking: Sequence[Ranked[Id]], scores: Mapping[Id, float]) -> list[Ranked[Id]]:
    """Returns the candidates with a new score, best first, ties in the first order, and then the rest.

    New scores count above the scores of the rest, so that scores decrease along the ranking. A text that equals the
    query stays first.
    """
    rest = [each for each in ranking if each.id not in scores]
    above = max((each.score for each in rest), default=0.0) - min(0.0, *scores.values())
    exact = max(scores.values()) + EXACT
    ranked = [
        each._replace(score=above + score + (exact if each.is_exact else 0.0), rerank_score=score)
        for each in ranking
        if (score := scores.get(each.id)) is not None
    ]
    return sorted(ranked, key=lambda each: -each.score) + rest
