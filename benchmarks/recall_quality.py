"""Scores message search: `python -m benchmarks.recall_quality [--dialogues 10] [--engines sqlite,postgresql] …`.

Generated dialogues are stored through the service of the recall room, one agent each, and every question is searched in
its agent's messages. The figures are shares of questions with a right message among the first 1, 5 and 10 hits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engram_kit.clock import SystemClock
from engram_kit.ids import derive_id
from engram_kit.sql import Database
from engram_recall.commands import Batch, MessageSearch, SearchMode, SearchScope
from engram_recall.indexer import Indexer, MessageVectors
from engram_recall.model import Message, Role, TextPart
from engram_recall.search import MessageFinder
from engram_recall.service import MessageService
from engram_recall.store.sql import SqlRecallStore
from engram_retrieval.edge import EdgeIndex
from engram_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from engram_testkit.postgres import running_postgres

from benchmarks.dialogues import Dialogue, Question, Turn, dialogues

ORGANIZATION: Final = "org-00000000-0000-4000-8000-000000000001"
DEPTHS: Final = (1, 5, 10)
BATCH: Final = 100
EMBEDDERS: Final = {"wordllama": WORDLLAMA, "hashing": HASHING}


@dataclass(frozen=True, slots=True)
class Loading:
    """How dialogues are stored: what a caller may leave out."""

    times: bool = True
    names: bool = True


@dataclass(slots=True)
class Scores:
    """Questions and the ranks of their best evidence, by kind; None where it was not among the hits."""

    ranks: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)

    def share(self, depth: int, kind: str | None = None) -> float:
        """The share of questions with evidence among the first `depth` hits."""
        ranks = self.ranks[kind] if kind else [rank for ranks in self.ranks.values() for rank in ranks]
        return sum(rank is not None and rank <= depth for rank in ranks) / max(1, len(ranks))


async def measure(
    service: MessageService, given: Sequence[Dialogue], modes: Sequence[SearchMode]
) -> dict[SearchMode, Scores]:
    """Asks every question in every mode."""
    found = {mode: Scores() for mode in modes}
    for number, dialogue in enumerate(given):
        for mode in modes:
            for question in dialogue.questions:
                began = time.perf_counter()
                rank = await _rank(service, number, question, mode)
                found[mode].seconds.append(time.perf_counter() - began)
                found[mode].ranks[question.kind].append(rank)
    return found


async def load(service: MessageService, given: Sequence[Dialogue], loading: Loading) -> None:
    """Stores the dialogues, one agent each, in batches."""
    for number, dialogue in enumerate(given):
        messages = [_message(number, turn, loading) for turn in dialogue.turns]
        for start in range(0, len(messages), BATCH):
            batch = Batch(
                agent_id=agent_of(number), conversation_id=None, messages=tuple(messages[start : start + BATCH])
            )
            await service.append_messages(ORGANIZATION, batch, None)


@asynccontextmanager
async def recall(database_url: str, directory: Path, embedder: str) -> AsyncIterator[tuple[MessageService, Indexer]]:
    """The room's service over real stores."""
    database, model = Database.open(database_url), make_embedder(embedder)
    await database.migrate("engram_recall")
    index = await EdgeIndex.open(directory)
    try:
        store = SqlRecallStore(database, SystemClock())
        vectors = MessageVectors(index, model)
        indexer = Indexer(store, vectors)
        await indexer.open()
        yield MessageService(store, MessageFinder(store, vectors), indexer), indexer
    finally:
        await index.close()
        await model.close()
        await database.close()


def agent_of(number: int) -> str:
    """The agent of a dialogue."""
    return derive_id("agent", f"dialogue {number}")


async def _rank(service: MessageService, number: int, question: Question, mode: SearchMode) -> int | None:
    scope = SearchScope(organization_id=ORGANIZATION, agent_id=agent_of(number))
    hits = await service.search_messages(MessageSearch(query=question.text, mode=mode, limit=DEPTHS[-1], scope=scope))
    evidence = {_id(number, turn) for turn in question.evidence}
    return next((rank for rank, hit in enumerate(hits, start=1) if hit.message.id in evidence), None)


def _message(number: int, turn: Turn, loading: Loading) -> Message:
    return Message(
        id=_id(number, turn.number),
        agent_id=agent_of(number),
        role=Role.USER if turn.is_first_speaker else Role.ASSISTANT,
        created_at=turn.said_at if loading.times else SystemClock().now(),
        content=(TextPart(turn.text),),
        name=turn.speaker if loading.names else None,
    )


def _id(number: int, turn: int) -> str:
    return derive_id("message", f"dialogue {number}", str(turn))


async def _database(engine: str, directory: Path, stack: ExitStack) -> str:
    if engine == "sqlite":
        return f"sqlite:///{directory / 'recall.db'}"
    server = stack.enter_context(running_postgres())
    return server.url(await server.create_database())


async def _run(given: argparse.Namespace) -> list[dict[str, Any]]:
    made = dialogues(given.dialogues, given.seed)
    loading = Loading(times=not given.without_times, names=not given.without_names)
    modes = [SearchMode(mode) for mode in given.modes.split(",")]
    rows: list[dict[str, Any]] = []
    for embedder in given.embedders.split(","):
        with tempfile.TemporaryDirectory(prefix="engram-quality-") as place, ExitStack() as stack:
            for engine in given.engines.split(","):
                url = await _database(engine, Path(place), stack)
                async with recall(url, Path(place) / f"index-{engine}", EMBEDDERS[embedder]) as (service, indexer):
                    await load(service, made, loading)
                    await indexer.catch_up()
                    for mode, scores in (await measure(service, made, modes)).items():
                        rows.append(_row(engine, embedder, mode, scores))
                        print(_line(rows[-1]), flush=True)
    return rows


def _row(engine: str, embedder: str, mode: SearchMode, scores: Scores) -> dict[str, Any]:
    kinds = sorted(scores.ranks)
    return {
        "engine": engine,
        "embedder": embedder,
        "mode": mode.value,
        "found_at": {str(depth): round(scores.share(depth), 3) for depth in DEPTHS},
        "found_at_5_by_kind": {kind: round(scores.share(5, kind), 3) for kind in kinds},
        "p50_ms": round(sorted(scores.seconds)[len(scores.seconds) // 2] * 1000, 2),
    }


def _line(row: dict[str, Any]) -> str:
    shares = " ".join(f"{share:.3f}" for share in row["found_at"].values())
    kinds = " ".join(f"{kind} {share:.2f}" for kind, share in row["found_at_5_by_kind"].items())
    return f"{row['engine']:<11}{row['embedder']:<10}{row['mode']:<7} {shares}   at 5: {kinds}   {row['p50_ms']} ms"


def main() -> int:
    """Reads the arguments, measures, prints and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall_quality", description=__doc__)
    parser.add_argument("--dialogues", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--engines", default="sqlite,postgresql")
    parser.add_argument("--embedders", default="wordllama,hashing")
    parser.add_argument("--modes", default="hybrid,text,vector")
    parser.add_argument("--without-times", action="store_true", help="store messages without the time they were said")
    parser.add_argument("--without-names", action="store_true", help="store messages without their speaker's name")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    given = parser.parse_args()
    rows = asyncio.run(_run(given))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
