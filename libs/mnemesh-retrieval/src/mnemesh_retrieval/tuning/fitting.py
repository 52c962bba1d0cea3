"""Fits the constants of the ranking to dialogues, and tells whether the fit is better than the defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.tuning.metrics import Estimate, Outcome, gain
from mnemesh_retrieval.tuning.trial import AnalysedQuestion, Trial, tried

WEIGHTS: Final = (0.0, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The weights of an embedder that are tried."""
COORDINATES: Final[dict[str, tuple[float, ...]]] = {
    "question_share": (0.4, 0.6, 0.8, 1.0),
    "before_share": (0.2, 0.35, 0.5, 0.65, 0.8),
    "second_before_share": (0.0, 0.15, 0.3, 0.45),
    "after_share": (0.0, 0.2, 0.4, 0.6),
    "second_after_share": (0.0, 0.1, 0.2, 0.35),
    "question_factor": (0.7, 0.85, 1.0),
    "speaker_factor": (1.0, 1.1, 1.25, 1.5),
    "similarity_after_question": (0.3, 0.6, 0.9),
    "similarity_before": (0.0, 0.15, 0.3, 0.5),
    "similarity_after": (0.0, 0.15, 0.3),
    "time_factor": (1.0, 1.3, 1.6, 2.0),
}
"""The values of constants that are tried. Those of BM25 are left out, because no value of them gained anything."""
ROUNDS: Final = 2
LEAST_STEP: Final = 0.002
"""A value replaces another one only if the mean of the objective grows by as much; less is noise."""
FOLDS: Final = 5
FEWEST_QUESTIONS: Final = 20
METRICS: Final[dict[str, Callable[[Outcome], float]]] = {
    "any@1": lambda outcome: float(outcome.any_at(1)),
    "any@5": lambda outcome: float(outcome.any_at(5)),
    "any@10": lambda outcome: float(outcome.any_at(10)),
    "all@10": lambda outcome: float(outcome.all_at(10)),
    "MRR": lambda outcome: outcome.reciprocal_rank,
}


class TooFewQuestions(Exception):
    """The dialogues have too few questions with evidence to fit anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The result of a fit."""

    start: Trial
    fitted: Trial
    """The constants that suit all questions best."""
    before: tuple[Outcome, ...]
    """The result of a search with the first constants."""
    held_out: tuple[Outcome, ...]
    """What a search finds with constants that were fitted without the question: what to expect of new questions."""

    @property
    def gain(self) -> Estimate:
        """The gain of the objective by the fit on questions that it did not see."""
        return gain(self.before, self.held_out, objective)

    @property
    def is_gain(self) -> bool:
        """Whether the gain is larger than chance, and anything changed."""
        return self.fitted != self.start and self.gain.low > 0


def objective(outcome: Outcome) -> float:
    """Returns what is maximised: the mean of any@5, any@10, all@10 and the reciprocal rank."""
    values = (outcome.any_at(5), outcome.any_at(10), outcome.all_at(10), outcome.reciprocal_rank)
    return sum(values) / len(values)


def tune(
    questions: Sequence[AnalysedQuestion],
    start: Trial,
    *,
    folds: int = FOLDS,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
    """Fits by coordinate search, once on all questions, and once without each fold for the estimate of the gain.

    Questions whose evidence is in one session are in one fold; with at least `folds` dialogues, those of one dialogue.

    Raises:
        TooFewQuestions: there are fewer than 20 questions, or their evidence is in one session.
    """
    if len(questions) < FEWEST_QUESTIONS:
        raise TooFewQuestions(
            f"There are {len(questions)} questions with evidence. At least {FEWEST_QUESTIONS} are needed."
        )
    assigned = _folds(questions, folds)
    if len(set(assigned.tolist())) < 2:
        raise TooFewQuestions("The evidence of all questions is in one session. Questions about others are needed.")
    trials = _Trials(questions)
    held_out: dict[int, Outcome] = {}
    for fold in sorted(set(assigned.tolist())):
        without = trials.fitted(start, np.flatnonzero(assigned != fold))
        for position in np.flatnonzero(assigned == fold):
            held_out[int(position)] = trials.outcomes(without)[position]
        if progress is not None:
            progress(f"fold {fold + 1}: {trials.count} trials")
    return Tuning(
        start=start,
        fitted=trials.fitted(start, np.arange(len(questions))),
        before=tuple(trials.outcomes(start)),
        held_out=tuple(held_out[position] for position in range(len(questions))),
    )


def changes(tuning: Tuning) -> dict[str, tuple[float, float]]:
    """Returns the constants that the fit changed, with their values before and after."""
    found = {
        name: (getattr(tuning.start.constants, name), getattr(tuning.fitted.constants, name)) for name in COORDINATES
    }
    found["similarity_weight"] = (tuning.start.similarity_weight, tuning.fitted.similarity_weight)
    return {name: values for name, values in found.items() if values[0] != values[1]}


class _Trials:
    """The outcomes of all questions with tried constants."""

    def __init__(self, questions: Sequence[AnalysedQuestion]) -> None:
        self._questions = questions
        self._outcomes: dict[tuple[float, ...], list[Outcome]] = {}
        self._has_similarity = any(bool(each.similarities.any()) for each in questions)

    @property
    def count(self) -> int:
        return len(self._outcomes)

    def outcomes(self, trial: Trial) -> list[Outcome]:
        key = (trial.similarity_weight, *(getattr(trial.constants, name) for name in COORDINATES))
        if key not in self._outcomes:
            self._outcomes[key] = [tried(question, trial) for question in self._questions]
        return self._outcomes[key]

    def fitted(self, start: Trial, positions: npt.NDArray[np.intp]) -> Trial:
        """Returns the constants that a coordinate search finds for some questions."""

        def value(trial: Trial) -> float:
            found = self.outcomes(trial)
            return float(np.mean([objective(found[position]) for position in positions]))

        best, best_value = start, value(start)
        for _ in range(ROUNDS):
            before = best
            for name in ("similarity_weight", *COORDINATES) if self._has_similarity else COORDINATES:
                for candidate in _neighbours(best, name):
                    found = value(candidate)
                    if found >= best_value + LEAST_STEP:
                        best, best_value = candidate, found
            if best == before:
                break
        return best


def _neighbours(trial: Trial, name: str) -> list[Trial]:
    if name == "similarity_weight":
        return [replace(trial, similarity_weight=weight) for weight in WEIGHTS]
    return [replace(trial, constants=_with(trial.constants, name, value)) for value in COORDINATES[name]]


def _with(constants: RankingConstants, name: str, value: float) -> RankingConstants:
    changes: dict[str, Any] = {name: value}
    return replace(constants, **changes)


def _folds(questions: Sequence[AnalysedQuestion], folds: int) -> npt.NDArray[np.intp]:
    dialogues = list(dict.fromkeys(question.dialogue.id for question in questions))
    if len(dialogues) >= folds:
        return np.array([dialogues.index(question.dialogue.id) % folds for question in questions])
    groups = list(dict.fromkeys((question.dialogue.id, question.session) for question in questions))
    return np.array([groups.index((question.dialogue.id, question.session)) % folds for question in questions])
