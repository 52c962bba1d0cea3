"""Scores message search: `python -m benchmarks.recall_quality [--dialogues 10] [--engines sqlite,postgresql] …`.

Stores dialogues, generated or from a file (`--dialogues FILE`, see benchmarks/datasets.py), through the use cases of
recall, one agent each, in several variants, and searches for every question in the agent's messages. The figures are
the shares of questions with a correct message among the first 1, 5 and 10 hits, compared with full-text search in the
same texts.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import RandomIds, derive_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import SystemClock
from mnemesh_recall.model.contexts import NewContext
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.search import MessageSearch, SearchScope
from mnemesh_recall.store.indexed import IndexedMessages
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.store.tables import index_tables
from mnemesh_recall.store.transaction import MESSAGES
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.usecases.messages import MessageService, WordIndexing
from mnemesh_recall.vectors import MessageSource, MessageVectors
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from mnemesh_testkit.databases.postgres import running_postgres
from mnemesh_types.messages import Message, Role, TextPart

from benchmarks.dialogues import VARIANTS, Dialogue, Question, Turn, Variant, chosen
from benchmarks.scoring import DEPTHS, Scores, line, references, write

CALLER: Final = DEFAULT_PRINCIPAL
EMBEDDERS: Final = {"wordllama": WORDLLAMA, "hashing": HASHING}


async def measure(
    service: MessageService, dialogues: Sequence[Dialogue], modes: Sequence[SearchMode]
) -> dict[SearchMode, Scores]:
    """Searches for every question in every mode."""
    found = {mode: Scores() for mode in modes}
    for number, dialogue in enumerate(dialogues):
        for mode in modes:
            for question in dialogue.questions:
                started = time.perf_counter()
                evidence = frozenset(_id(number, turn) for turn in question.evidence)
                found[mode].note(question.kind, await _found(service, number, question, mode), evidence, started)
    return found


async def load(service: MessageService, dialogues: Sequence[Dialogue], variant: Variant) -> None:
    """Stores the dialogues in batches, one agent each."""
    for number, dialogue in enumerate(dialogues):
        for conversation, turns in _conversations(number, dialogue, variant).items():
            if conversation is not None:
                prompt = Message(
                    id=derive_id("message", conversation),
                    agent_id=agent_of(number),
                    role=Role.SYSTEM,
                    created_at=turns[0].said_at,
                )
                made = NewContext(agent_id=agent_of(number), conversation_id=conversation, messages=(prompt,))
                await service.create_context(CALLER, made, None)
            messages = [_message(number, dialogue, turn, variant) for turn in turns]
            for start in range(0, len(messages), variant.batch):
                some = tuple(messages[start : start + variant.batch])
                batch = MessageBatch(agent_id=agent_of(number), conversation_id=conversation, messages=some)
                await service.append_messages(CALLER, batch, None)


@asynccontextmanager
async def recall(database_url: str, directory: Path, embedder: str) -> AsyncIterator[tuple[MessageService, Indexer]]:
    """Runs recall's use cases with real stores."""
    database, model = Database.open(database_url), make_embedder(embedder)
    await database.migrate("mnemesh_recall")
    index = await FlatIndex.open(directory)
    try:
        store = MessageStore(database, SystemClock(), RandomIds())
        indexer = Indexer(Outbox(database, index_tables, SystemClock()), index)
        vectors = MessageVectors(index, model, indexer)
        await indexer.register(MESSAGES, MessageSource(IndexedMessages(database), vectors))
        await indexer.open()
        words = WordIndexing(store, SystemClock())
        yield MessageService(store, MessageFinder(store, vectors), indexer, words), indexer
    finally:
        await index.close()
        await model.close()
        await database.close()


def agent_of(number: int) -> str:
    """Returns the id of a dialogue's agent."""
    return derive_id("agent", f"dialogue {number}")


async def _found(service: MessageService, number: int, question: Question, mode: SearchMode) -> list[str]:
    scope = SearchScope(agent_id=agent_of(number))
    found = await service.search_messages(
        CALLER, MessageSearch(query=question.text, mode=mode, limit=DEPTHS[-1], scope=scope)
    )
    return [hit.message.id for hit in found.hits]


def _conversations(number: int, dialogue: Dialogue, variant: Variant) -> dict[str | None, list[Turn]]:
    if variant.sessions == "together":
        return {None: list(dialogue.turns)}
    found: dict[str | None, list[Turn]] = {}
    for turn in dialogue.turns:
        found.setdefault(derive_id("conv", f"dialogue {number}", str(turn.session)), []).append(turn)
    return found


def _message(number: int, dialogue: Dialogue, turn: Turn, variant: Variant) -> Message:
    first = turn.is_first_speaker if variant.roles == "both" else variant.roles == "user"
    return Message(
        id=_id(number, turn.number),
        agent_id=agent_of(number),
        role=Role.USER if first else Role.ASSISTANT,
        created_at=variant.time(dialogue, turn) or SystemClock().now(),
        content=(TextPart(variant.text(turn)),),
        name=turn.speaker if variant.speaker == "name" else None,
    )


def _id(number: int, turn: int) -> str:
    return derive_id("message", f"dialogue {number}", str(turn))


async def _database(engine: str, directory: Path, stack: ExitStack) -> str:
    if engine == "sqlite":
        return f"sqlite:///{directory / 'recall.db'}"
    server = stack.enter_context(running_postgres())
    return server.url(await server.create_database())


async def _run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    made = chosen(arguments.dialogues, arguments.seed)
    modes = [SearchMode(mode) for mode in arguments.modes.split(",")]
    rows: list[dict[str, Any]] = []

    def note(scores: Scores, **what: str) -> None:
        rows.append(scores.row(**what))
        print(line(rows[-1]), flush=True)

    for name in arguments.variants.split(","):
        variant = VARIANTS[name]
        for way, scores in references(made, variant).items():
            note(scores, set=name, engine="fts5", embedder="-", mode=way)
        for engine, embedder in itertools.product(arguments.engines.split(","), arguments.embedders.split(",")):
            with tempfile.TemporaryDirectory(prefix="mnemesh-quality-") as position, ExitStack() as stack:
                url = await _database(engine, Path(position), stack)
                async with recall(url, Path(position) / "index", EMBEDDERS[embedder]) as (service, indexer):
                    await load(service, made, variant)
                    await indexer.catch_up()
                    for mode, scores in (await measure(service, made, modes)).items():
                        note(scores, set=name, engine=engine, embedder=embedder, mode=mode.value)
    return rows


def main() -> None:
    """Parses the arguments, measures, prints and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall_quality", description=__doc__)
    parser.add_argument("--dialogues", default="10", help="number of generated dialogues, or a JSON file (%(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--engines", default="sqlite,postgresql")
    parser.add_argument("--embedders", default="wordllama")
    parser.add_argument("--modes", default="hybrid,text")
    parser.add_argument("--variants", default="named,in-text,nameless,session-times,conversations,timeless,users")
    parser.add_argument("--out", type=Path, default=None, help="the JSON report")
    arguments = parser.parse_args()
    write(asyncio.run(_run(arguments)), arguments.out)


if __name__ == "__main__":
    main()
