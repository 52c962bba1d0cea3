"""Constants are fitted to dialogues; the gain is that on questions that the fit did not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.ranking.constants import DEFAULTS, RankingConstants
from mnemesh_retrieval.ranking.scores import (
    Candidate,
    Strands,
    factor,
    fuse_scores,
    limited,
    rarity,
    saturation,
    time_factor,
)
from mnemesh_retrieval.ranking.texts import normalized, utterance
from mnemesh_retrieval.registry import HASHING, make_embedder
from mnemesh_retrieval.time_expressions.resolver import resolve
from mnemesh_retrieval.tuning import fitting
from mnemesh_retrieval.tuning.dialogues import Dialogue, Question, Session, Turn
from mnemesh_retrieval.tuning.fitting import TooFewQuestions, changes, tune
from mnemesh_retrieval.tuning.formats import read_dialogues
from mnemesh_retrieval.tuning.trial import AnalysedQuestion, Trial, analysed, ranking
from mnemesh_retrieval.words.analysis import indexed, terms

WRITTEN = Path(__file__).parents[4] / "benchmarks" / "data" / "written.json"
OTHER = RankingConstants(before_share=0.2, after_share=0.6, question_factor=0.7, speaker_factor=1.5, time_factor=2.0)
FEW = {"speaker_factor": (1.0, 1.1), "after_share": (0.2, 0.4)}


def by_pure_functions(
    dialogue: Dialogue, question: Question, similarities: Sequence[float], trial: Trial
) -> dict[str, float]:
    """Scores the turns of a dialogue by the functions that the services use, best first."""
    constants, turns, words = trial.constants, list(dialogue.turns()), terms(question.text)
    bodies = [indexed(turn.text).split() for turn in turns]
    weight = saturation(sum(map(len, bodies)) / len(bodies), constants)

    def weights(text: list[str], length: int) -> dict[str, float]:
        counts = {word: text.count(word) for word in words}
        return {word: weight(n, length) for word, n in counts.items() if n}

    parts = [utterance(turn.text) for turn in turns]
    about = [indexed(f"{turn.speaker} {turn.said_at.day} {turn.said_at:%B %Y}").split() for turn in turns]
    own = [weights(body + more, len(body)) for body, more in zip(bodies, about, strict=True)]
    lent = [weights(body, len(body)) for body in bodies]
    near = Strands.of(
        [0] * len(turns), list(range(len(turns))), [turn.said_at.timestamp() for turn in turns], constants
    )
    received = near.received_words(
        np.array([[mine.get(word, 0.0) for word in words] for mine in lent]).reshape(len(turns), len(words)),
        np.array([[word in set(indexed(part.questions).split()) for word in words] for part in parts], bool).reshape(
            len(turns), len(words)
        ),
        constants,
    )
    shared = near.shared_similarities(np.array(similarities), np.array([part.asks for part in parts]), constants)
    weighed = np.array([[mine.get(word, 0.0) for word in words] for mine in own]).reshape(len(turns), len(words))
    whole = weighed + limited(received, weighed, weighed.max(axis=0, initial=0.0))
    rarities = {word: rarity(sum(word in each for each in own), len(turns)) for word in words}
    named = set(indexed(question.text).split())
    candidates = [
        Candidate(
            turn.id,
            float(whole[place] @ [rarities[word] for word in words]),
            float(shared[place]),
            factor(
                constants,
                ends_in_question=part.ends_in_question,
                is_named_speaker=bool(set(indexed(turn.speaker).split()) & named),
                time=time_factor(turn.said_at, resolve(question.text, UTC, None), constants),
            ),
            normalized(turn.text) == normalized(question.text),
        )
        for place, (turn, part) in enumerate(zip(turns, parts, strict=True))
    ]
    ranked = fuse_scores(candidates[::-1], trial.similarity_weight, constants, least_similarity=trial.least_similarity)
    return {each.id: round(each.score, 5) for each in ranked}


@pytest.mark.parametrize("trial", [Trial(DEFAULTS, 0.25), Trial(OTHER, 1.0, 0.1), Trial(OTHER, 0.0)])
async def test_a_trial_ranks_as_the_services_do(trial: Trial) -> None:
    (whole,) = read_dialogues(WRITTEN)
    dated = Question(id="d", text="What did Nora say on 14 January 2024?", category="d", evidence=frozenset({"1:1"}))
    exact = Question(id="e", text=next(whole.turns()).text, category="e", evidence=frozenset({"1:1"}))
    dialogue = replace(whole, questions=(dated, exact, *whole.questions[:10]))
    for question, found in zip(dialogue.questions, await analysed([dialogue], make_embedder(HASHING)), strict=True):
        ids = [found.dialogue.ids[position] for position in ranking(found, trial)]
        expected = by_pure_functions(dialogue, question, [float(value) for value in found.similarities], trial)
        # Turns with equal scores may be in any order.
        assert [expected[id_] for id_ in ids[:20]] == list(expected.values())[:20], question.text
        assert set(ids) == set(expected)


async def test_words_of_two_languages_count_as_one_and_names_have_no_language() -> None:
    said = [
        ("Tom", "¿Dónde está el piano de la casa?"),
        ("Mia", "The piano is in the hall and it is old."),
        ("Tom", "Me gusta este piano, es muy viejo."),
    ]
    start = datetime(2024, 1, 1, tzinfo=UTC)
    turns = tuple(
        Turn(id=str(n), speaker=speaker, role="user", text=text, said_at=start + timedelta(minutes=n))
        for n, (speaker, text) in enumerate(said)
    )
    question = Question(id="q", text="Tom's piano", category="c", evidence=frozenset({"1"}))
    dialogue = Dialogue(id="d", sessions=(Session(id="s", turns=turns),), questions=(question,))
    (found,) = await analysed([dialogue], None)
    words = list(terms(question.text, ["spanish"]))
    rarities = dict(zip(words, found.rarities.tolist(), strict=True))
    assert rarities == pytest.approx({word: rarity(2 if word.startswith("tom") else 3, 3) for word in words})
    assert found.names_speaker.tolist() == [True, False, True]
    assert found.asked[words.index("pian9es")].tolist() == [True, False, False]


class Knowing:
    """An embedder that knows which turn answers which question: both have the same number."""

    handle = "acme/knowing"
    dimension = 64
    similarity_weight = least_similarity = 0.0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [np.eye(64, dtype=np.float32)[int(text.rstrip(".?").split()[-1])] for text in texts]

    async def close(self) -> None: ...


def numbered(count: int, sessions: int = 6) -> Dialogue:
    """A dialogue whose questions share a word with every turn, but only similarity tells which one answers."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    turns = [
        Turn(id=str(n), speaker="Ann", role="user", text=f"The boat {n}.", said_at=start + timedelta(days=n))
        for n in range(count)
    ]
    size = -(-count // sessions)
    parts = tuple(Session(id=str(at), turns=tuple(turns[at : at + size])) for at in range(0, count, size))
    asked = tuple(
        Question(id=str(n), text=f"Which boat has letter {n}?", category="c", evidence=frozenset({str(n)}))
        for n in range(count)
    )
    return Dialogue(id="d", sessions=parts, questions=asked)


def without_numbers(questions: list[AnalysedQuestion]) -> list[AnalysedQuestion]:
    """Removes the number from what words find, so that only the embedder knows it."""
    return [
        replace(
            each, own=np.minimum(each.own[:1], 1), lent=each.lent[:1], asked=each.asked[:1], rarities=each.rarities[:1]
        )
        for each in questions
    ]


async def test_a_better_embedder_gets_weight_and_the_gain_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COORDINATES", FEW)
    questions = without_numbers(await analysed([numbered(36)], Knowing()))
    lines: list[str] = []
    tuning = tune(questions, Trial(DEFAULTS, 0.0), progress=lines.append)
    assert tuning.fitted.similarity_weight > 0
    assert "similarity_weight" in changes(tuning)
    assert tuning.is_gain
    assert tuning.gain.low > 0.3
    assert len(lines) == 5


async def test_no_gain_is_told_from_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COORDINATES", FEW)
    questions = without_numbers(await analysed([numbered(36)], make_embedder(HASHING)))
    shuffled = np.random.default_rng(3).permutation(len(questions))
    noise = [
        replace(each, similarities=questions[int(other)].similarities)
        for each, other in zip(questions, shuffled, strict=True)
    ]
    tuning = tune(noise, Trial(DEFAULTS, 0.0))
    assert not tuning.is_gain
    assert tuning.gain.low <= 0


async def test_too_little_data_is_refused() -> None:
    few = await analysed([numbered(19)], None)
    with pytest.raises(TooFewQuestions, match=r"19 questions with evidence. At least 20"):
        tune(few, Trial(DEFAULTS, 0.25))
    together = await analysed([numbered(36, sessions=1)], None)
    with pytest.raises(TooFewQuestions, match="in one session"):
        tune(together, Trial(DEFAULTS, 0.25))
