"""Scores passage search: `python -m benchmarks.retrieval_quality [--archives 4] [--tried] [--json build/quality.json]`.

Every question is asked of its archive by words, by meaning, and by both at several weights of the embedder's list. The
figures are shares of questions with a right passage among the first 1, 5 and 10 hits. `hybrid_weight` of an embedder is
chosen from them. `--tried` also scores what the engines do not do: fusing by scores, and words of neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from engram_retrieval.edge import EdgeIndex
from engram_retrieval.embedder import Embedder
from engram_retrieval.filters import Match
from engram_retrieval.fusion import fuse
from engram_retrieval.index import Collection, Hit, Point, SearchMode, SearchQuery
from engram_retrieval.registry import HASHING, WORDLLAMA, EmbedderSettings, make_embedder

from benchmarks.passages import Shelf, notes, talks

DEPTHS: Final = (1, 5, 10)
WEIGHTS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0)
CANDIDATES: Final = 50
"""How many hits of each list are fused: what a search for ten hits takes."""
SCORE_WEIGHTS: Final = (0.3, 0.5, 1.0)
NEIGHBOURS: Final = 2
Ranking = list[UUID]
Figures = dict[str, tuple[float, ...]]


async def measure(
    shelves: Sequence[Shelf], embedder: Embedder, directory: Path, *, tried: bool = False, neighbours: bool = False
) -> dict[str, Figures]:
    """The shares by way of searching, for all questions and for each kind."""
    index = await EdgeIndex.open(directory)
    await index.ensure_collection(Collection("p", embedder.dimension, keyword_fields=("shelf",), tenant_field="shelf"))
    for number, shelf in enumerate(shelves):
        await _load(index, embedder, number, shelf, neighbours)
    places: dict[str, dict[str, list[int | None]]] = defaultdict(lambda: defaultdict(list))
    for number, shelf in enumerate(shelves):
        vectors = await embedder.embed([asked.text for asked in shelf.questions])
        for asked, vector in zip(shelf.questions, vectors, strict=True):
            only = Match("shelf", str(number))
            by_words, by_meaning = [
                await index.search("p", SearchQuery(mode, asked.text, vector, only, CANDIDATES))
                for mode in (SearchMode.TEXT, SearchMode.DENSE)
            ]
            right = {UUID(int=_point(number, place)) for place in asked.evidence}
            for way, ranking in _ways(by_words, by_meaning, tried).items():
                place = next((rank for rank, id_ in enumerate(ranking, start=1) if id_ in right), None)
                for kind in ("all", asked.kind):
                    places[way][kind].append(place)
    await index.close()
    return {way: {kind: _shares(ranks) for kind, ranks in kinds.items()} for way, kinds in places.items()}


async def _load(index: EdgeIndex, embedder: Embedder, number: int, shelf: Shelf, neighbours: bool) -> None:
    vectors = await embedder.embed(shelf.passages)
    points = [
        Point(UUID(int=_point(number, place)), vector, _words(shelf, place, neighbours), {"shelf": str(number)})
        for place, vector in enumerate(vectors)
    ]
    await index.write("p", points)


def _words(shelf: Shelf, place: int, neighbours: bool) -> str:
    text = shelf.passages[place]
    if not neighbours:
        return text
    before, after = shelf.passages[max(0, place - NEIGHBOURS) : place], shelf.passages[place + 1 :][:NEIGHBOURS]
    return " ".join([text, text, *before, *after])  # twice its own words: those around count half


def _point(shelf: int, place: int) -> int:
    return shelf * 1_000_000 + place + 1


def _ways(words: Sequence[Hit], meaning: Sequence[Hit], tried: bool) -> dict[str, Ranking]:
    by_words, by_meaning = [hit.id for hit in words], [hit.id for hit in meaning]
    ways = {"words": by_words, "meaning": by_meaning}
    for weight in WEIGHTS:
        ways[f"both, {weight}"] = [id_ for id_, _ in fuse([(weight, by_meaning), (1.0, by_words)])]
    for weight in SCORE_WEIGHTS if tried else ():
        ways[f"by scores, {weight}"] = _by_scores(words, meaning, weight)
    return ways


def _by_scores(words: Sequence[Hit], meaning: Sequence[Hit], weight: float) -> Ranking:
    """Scores put on one scale: of words as parts of the best, of meaning between the last candidate and the best."""
    scores: dict[UUID, float] = defaultdict(float)
    for hit in words:
        scores[hit.id] += hit.score / words[0].score
    for hit in meaning:
        spread = meaning[0].score - meaning[-1].score
        scores[hit.id] += weight * (hit.score - meaning[-1].score) / spread if spread else weight
    return sorted(scores, key=lambda id_: (-scores[id_], id_))


def _shares(ranks: Sequence[int | None]) -> tuple[float, ...]:
    return tuple(sum(rank is not None and rank <= depth for rank in ranks) / len(ranks) for depth in DEPTHS)


def table(found: dict[str, Figures]) -> str:
    """The figures as Markdown."""
    kinds = sorted(next(iter(found.values())), key=lambda kind: (kind != "all", kind))
    lines = [f"| search | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for way, figures in found.items():
        cells = (" / ".join(f"{share:.2f}".removeprefix("0") for share in figures[kind]) for kind in kinds)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


async def run(archives: int, embedders: Sequence[Embedder], tried: bool) -> dict[str, dict[str, dict[str, Figures]]]:
    """Every set with every embedder; prints as it goes."""
    found: dict[str, dict[str, dict[str, Figures]]] = {}
    for name, shelves in (("notes", notes(archives)), ("dialogues", talks(archives))):
        passages, questions = sum(len(s.passages) for s in shelves), sum(len(s.questions) for s in shelves)
        for embedder, neighbours in itertools.product(embedders, (False, True) if tried else (False,)):
            with tempfile.TemporaryDirectory(prefix="engram-retrieval-") as directory:
                figures = await measure(shelves, embedder, Path(directory), tried=tried, neighbours=neighbours)
            title = f"{embedder.handle}, words of neighbours" if neighbours else embedder.handle
            found.setdefault(name, {})[title] = figures
            print(f"\n{name}, {title}: {passages:,} passages in {archives} archives, {questions:,} questions")
            print(f"\n{table(figures)}", flush=True)
    return found


def main() -> None:
    """Reads the arguments, runs, prints and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval_quality", description=__doc__)
    parser.add_argument("--archives", type=int, default=4, help="how many archives of each set (%(default)s)")
    parser.add_argument("--tried", action="store_true", help="also score what was tried and is not done")
    parser.add_argument("--json", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--embedder", action="append", help="handles to score; by default those that are built in")
    parser.add_argument("--base-url", default="", help="OpenAI-compatible API of embedders that are not")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--dimension", type=int, default=0)
    given = parser.parse_args()
    settings = EmbedderSettings(base_url=given.base_url, api_key=given.api_key, dimension=given.dimension)
    embedders = [make_embedder(handle, settings) for handle in given.embedder or (WORDLLAMA, HASHING)]
    found = asyncio.run(run(given.archives, embedders, given.tried))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
