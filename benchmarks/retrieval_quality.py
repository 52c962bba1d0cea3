"""Scores passage search: `python -m benchmarks.retrieval_quality [--dialogues 5] [--weights 0.01,0.1] …`.

Stores dialogues, generated or from a file (`--dialogues FILE`, see benchmarks/datasets.py), one passage per turn,
and generated notes of facts, through the use cases of archival, one archive each. Every question is searched in its
archive. The figures are the shares of questions with a correct passage among the first 1, 5 and 10 hits, compared with
full-text search in the same texts. `--weights` prints the results from which the `similarity_weight` of an embedder is
chosen.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mnemesh_archival.config import Config
from mnemesh_archival.model.inserts import InsertTarget
from mnemesh_archival.model.passages import Passage, PassageFilter
from mnemesh_archival.model.ranking import PassageSearch
from mnemesh_archival.store.archives import ArchiveStore
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.search import PassageSearchService
from mnemesh_archival.vectors import Embedders
from mnemesh_archival.wiring import open_parts
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.time import SystemClock
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, EmbedderSettings
from mnemesh_testkit.databases.postgres import running_postgres
from mnemesh_types.archival import Archive

from benchmarks.dialogues import VARIANTS, Asked, Dialogue, Variant, chosen, notes
from benchmarks.scoring import DEPTHS, Scores, line, references, write

ORGANIZATION: Final = DEFAULT_PRINCIPAL.organization_id


@dataclass(frozen=True, slots=True)
class Shelf:
    """The passages of one archive in batches, and the questions about them."""

    batches: tuple[tuple[Passage, ...], ...]
    questions: tuple[Asked, ...]


@dataclass(slots=True)
class Archival:
    """The use cases with real stores."""

    archives: ArchiveStore
    writer: PassageService
    finder: PassageSearchService
    embedders: Embedders

    async def load(self, shelf: Shelf) -> tuple[str, list[str]]:
        """Creates an archive with these passages and returns its id and theirs."""
        clock, embedder = SystemClock(), self.embedders.get(self.embedders.default)
        now = clock.now()
        draft = Archive(
            new_id("archive"),
            "shelf",
            embedder=embedder.handle,
            dimension=embedder.dimension,
            created_at=now,
            updated_at=now,
        )
        archive = await self.archives.create_archive(ORGANIZATION, draft, (), None)
        ids: list[str] = []
        for batch in shelf.batches:
            outcomes = await self.writer.insert(DEFAULT_PRINCIPAL, InsertTarget(archive_id=archive), batch, None)
            ids += [outcome.passage.id for outcome in outcomes if outcome.passage is not None]
        return archive, ids


@asynccontextmanager
async def archival(url: str, directory: Path, embedder: str, settings: EmbedderSettings) -> AsyncIterator[Archival]:
    """Runs archival's use cases with a database and an embedder."""
    clock, ids = SystemClock(), RandomIds()
    config = Config(
        data_dir=str(directory),
        database_url=url,
        embedder=embedder,
        embedder_base_url=settings.base_url,
        embedder_api_key=settings.api_key,
        embedder_dimension=settings.dimension,
    )
    parts = await open_parts(config, clock, ids)
    try:
        await parts.index.open()
        archives, passages, index, embedders = (
            ArchiveStore(parts.database, clock),
            parts.passages,
            parts.index,
            parts.embedders,
        )
        writer = PassageService(passages, index, embedders, clock, ids)
        yield Archival(archives, writer, PassageSearchService(archives, passages, index, embedders), embedders)
    finally:
        await parts.vectors.close()
        await parts.embedders.close()
        await parts.database.close()


async def measure(
    service: Archival, shelves: Sequence[Shelf], kinds: Sequence[SearchMode], weights: Sequence[float]
) -> dict[str, Scores]:
    loaded = [await service.load(shelf) for shelf in shelves]
    embedder = service.embedders.get(service.embedders.default)
    ways = [(kind.value, kind, embedder.similarity_weight) for kind in kinds]
    ways += [(f"hybrid {weight:g}", SearchMode.HYBRID, weight) for weight in weights]
    found = {name: Scores() for name, _, _ in ways}
    for name, kind, weight in ways:
        vars(embedder)["similarity_weight"] = weight
        for (archive, ids), shelf in zip(loaded, shelves, strict=True):
            which = PassageFilter(archive_id=archive)
            for asked in shelf.questions:
                started = time.perf_counter()
                search = PassageSearch(query=asked.text, kind=kind, filter=which, limit=DEPTHS[-1])
                answer = await service.finder.search(DEFAULT_PRINCIPAL, search)
                evidence = frozenset(ids[number] for number in asked.evidence)
                found[name].note(asked.kind, [hit.passage.id for hit in answer.hits], evidence, started)
    return found


def dialogue_shelf(dialogue: Dialogue, variant: Variant) -> Shelf:
    """Returns one passage per turn."""
    drafts = [Passage(text=variant.text(turn), created_at=variant.time(dialogue, turn)) for turn in dialogue.turns]
    asked = tuple(Asked(each.kind, each.text, each.evidence) for each in dialogue.questions)
    return Shelf(_batches(drafts, variant.batch), asked)


def _batches(drafts: Sequence[Passage], size: int) -> tuple[tuple[Passage, ...], ...]:
    return tuple(tuple(drafts[start : start + size]) for start in range(0, len(drafts), size))


def _sets(arguments: argparse.Namespace) -> dict[str, tuple[list[Shelf], dict[str, Scores]]]:
    made = chosen(arguments.dialogues, arguments.seed)
    sets: dict[str, tuple[list[Shelf], dict[str, Scores]]] = {}
    for name in arguments.variants.split(","):
        variant = VARIANTS[name]
        sets[name] = [dialogue_shelf(dialogue, variant) for dialogue in made], references(made, variant)
    if arguments.notes:
        shelves = notes(arguments.notes, arguments.seed)
        several = [
            Shelf(_batches([Passage(text=text) for text in shelf.passages], 100), shelf.questions) for shelf in shelves
        ]
        sets["notes"] = several, {}
    return sets


async def _run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    settings = EmbedderSettings(base_url=arguments.base_url, api_key=arguments.api_key, dimension=arguments.dimension)
    kinds = [SearchMode(mode) for mode in arguments.modes.split(",")]
    weights = [float(weight) for weight in arguments.weights.split(",") if weight]
    rows: list[dict[str, Any]] = []

    def note(**row: Any) -> None:
        rows.append(row.pop("scores").row(**row))
        print(line(rows[-1]), flush=True)

    for name, (shelves, compared) in _sets(arguments).items():
        for way, scores in compared.items():
            note(set=name, engine="fts5", embedder="-", mode=way, scores=scores)
        for engine in arguments.engines.split(","):
            for embedder in arguments.embedders.split(","):
                with tempfile.TemporaryDirectory(prefix="mnemesh-quality-") as position, ExitStack() as stack:
                    url = f"sqlite:///{position}/archival.db"
                    if engine == "postgresql":
                        server = stack.enter_context(running_postgres())
                        url = server.url(await server.create_database())
                    async with archival(url, Path(position) / "index", embedder, settings) as service:
                        for way, scores in (await measure(service, shelves, kinds, weights)).items():
                            note(set=name, engine=engine, embedder=embedder.split("/")[-1], mode=way, scores=scores)
    return rows


def main() -> None:
    """Parses the arguments, measures, prints and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval_quality", description=__doc__)
    parser.add_argument("--dialogues", default="5", help="number of generated dialogues, or a JSON file (%(default)s)")
    parser.add_argument("--notes", type=int, default=2, help="number of archives of notes (%(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--variants", default="in-text,nameless,session-times,timeless,one-by-one")
    parser.add_argument("--engines", default="sqlite", help="sqlite,postgresql: where positions are kept")
    parser.add_argument("--embedders", default=f"{WORDLLAMA},{HASHING}", help="handles (%(default)s)")
    parser.add_argument("--modes", default="hybrid,text,vector")
    parser.add_argument("--weights", default="", help="further weights of the embedder in hybrid mode")
    parser.add_argument("--base-url", default="", help="base URL of an OpenAI-compatible API")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--dimension", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="the JSON report")
    arguments = parser.parse_args()
    write(asyncio.run(_run(arguments)), arguments.out)


if __name__ == "__main__":
    main()
