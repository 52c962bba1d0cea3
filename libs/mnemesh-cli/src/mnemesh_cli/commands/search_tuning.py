"""The work of `mnemesh tune-search`. Needs the extra `tuning`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import notice, output
from mnemesh_kit.config import StartupError
from mnemesh_retrieval.errors import EmbedderError, RankingMisconfigured
from mnemesh_retrieval.ranking.constants import RankingConstants, load_constants
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder
from mnemesh_retrieval.tuning.dialogues import DatasetInvalid
from mnemesh_retrieval.tuning.fitting import METRICS, TooFewQuestions, Tuning, changes, objective, tune
from mnemesh_retrieval.tuning.formats import read_dialogues
from mnemesh_retrieval.tuning.metrics import Estimate, gain, mean
from mnemesh_retrieval.tuning.trial import AnalysedQuestion, Trial, analysed

_KEY = "MNEMESH_EMBEDDER_API_KEY"
_METRICS = {**METRICS, "mean": objective}
"""The printed metrics; the last one is what the fit maximises."""


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """The options of the command."""

    dialogues: Path
    embedder: str
    base_url: str
    dimension: int
    start: str
    out: Path | None
    as_json: bool


async def run(request: TuningRequest) -> None:
    """Fits, prints the result, and writes the file if there is a gain.

    Raises:
        StartupError: a file or a setting is wrong, the embedder fails, or there are too few questions.
    """
    try:
        constants = load_constants(request.start)
        questions, start = await _analysed(request, constants)
        notice(f"{len(questions)} questions with evidence; fitting takes a minute per 500")
        tuning = tune(questions, start, progress=notice)
    except (DatasetInvalid, EmbedderError, RankingMisconfigured, TooFewQuestions) as error:
        raise StartupError(str(error)) from error
    written = request.out if request.out is not None and tuning.is_gain else None
    if written is not None:
        _write(written, _fitted(tuning, request.embedder))
    if request.as_json:
        print_json(_as_json(tuning, request.embedder))
    else:
        output().print("\n".join(_lines(tuning, request, written)), markup=False)


async def _analysed(request: TuningRequest, constants: RankingConstants) -> tuple[list[AnalysedQuestion], Trial]:
    """Returns the questions, and the constants to begin with."""
    settings = EmbedderSettings(
        base_url=request.base_url, api_key=os.environ.get(_KEY, ""), dimension=request.dimension
    )
    embedder = make_embedder(request.embedder, settings)
    try:
        questions = await analysed(read_dialogues(request.dialogues), embedder)
    finally:
        await embedder.close()
    return questions, Trial(constants, constants.similarity_weight(embedder), embedder.least_similarity)


def _fitted(tuning: Tuning, embedder: str) -> RankingConstants:
    weights = {**tuning.fitted.constants.similarity_weights, embedder: tuning.fitted.similarity_weight}
    return replace(tuning.fitted.constants, similarity_weights=weights)


def _write(path: Path, constants: RankingConstants) -> None:
    try:
        path.write_text(constants.to_json(), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"The ranking file {path} cannot be written: {error.strerror}.") from error


def _as_json(tuning: Tuning, embedder: str) -> dict[str, Any]:
    return {
        "questions": len(tuning.before),
        "is_gain": tuning.is_gain,
        "scores": {
            name: {
                "before": asdict(mean([value(each) for each in tuning.before])),
                "after": asdict(mean([value(each) for each in tuning.held_out])),
                "gain": asdict(gain(tuning.before, tuning.held_out, value)),
            }
            for name, value in _METRICS.items()
        },
        "changes": {name: {"before": old, "after": new} for name, (old, new) in changes(tuning).items()},
        "constants": asdict(_fitted(tuning, embedder)),
    }


def _lines(tuning: Tuning, request: TuningRequest, written: Path | None) -> list[str]:
    lines = ["On questions that the fit did not see, with 95 % intervals of the gain:", ""]
    lines.append(f"{'':8}{'before':>8}{'after':>8}   gain")
    for name, value in _METRICS.items():
        before = mean([value(each) for each in tuning.before]).value
        after = mean([value(each) for each in tuning.held_out]).value
        lines.append(f"{name:8}{before:8.3f}{after:8.3f}   {_gain(gain(tuning.before, tuning.held_out, value))}")
    lines += ["", *_verdict(tuning, request, written)]
    return lines


def _verdict(tuning: Tuning, request: TuningRequest, written: Path | None) -> list[str]:
    changed = changes(tuning)
    if not tuning.is_gain:
        reason = f"the interval of the gain includes 0 ({_gain(tuning.gain)})" if changed else "no value is better"
        return [f"No gain: {reason}. Keep the constants in use. No file is written."]
    lines = [f"Gain: {_gain(tuning.gain)}. Changed constants, fitted to all questions:", ""]
    width = max(map(len, changed))
    lines += [f"{name:{width}}  {old:g} -> {new:g}" for name, (old, new) in changed.items()]
    if written is not None:
        return [*lines, "", f"Written to {written}. Set MNEMESH_RANKING_FILE to it and restart recall and archival."]
    return [*lines, "", "No file is written. Repeat with --out FILE to write one."] if request.out is None else lines


def _gain(found: Estimate) -> str:
    return f"{found.value:+.3f} [{found.low:+.3f} to {found.high:+.3f}]"
