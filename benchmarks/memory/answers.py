"""Answers of a model to the questions of dialogues: the mesh, the agents, their file, and their scores."""

import asyncio
import json
import os
import re
import string
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import snowballstemmer
from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_client import Mnemesh
from mnemesh_client.agent import Agent
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.services import SERVICES
from mnemesh_kit.sql import SqlConfig
from mnemesh_retrieval.config import IndexConfig

from benchmarks.datasets import Dialogue, Question
from benchmarks.memory.tiers import ArchivalTier, RecallTier
from benchmarks.mesh import free_ports
from benchmarks.metrics import mean, share


class AnswersOfAnotherRun(Exception):
    """The file has answers of another dataset, model or tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a model to a question, and its judgement."""

    dialogue: str
    question: str
    text: str | None
    """None if the turn failed."""
    error: str | None = None
    is_correct: bool | None = None
    """The judgement; None without a judge or if the judge gave none."""
    seconds: float = 0.0


class AnswerFile:
    """Appends answers. Every answer is on disk when `add` returns."""

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        """Opens or creates a file.

        Args:
            path: the file.
            run: what the answers depend on: dataset, model, judge, tier.

        Raises:
            AnswersOfAnotherRun: the file exists and was begun by another run.
        """
        self._path = path
        self.answers: dict[tuple[str, str], Answer] = {}
        """By dialogue and question. Failed answers of an earlier run are left out, so that they are repeated."""
        head = {"run": dict(run)}
        if not path.exists() or not path.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n")
            return
        lines = _lines(path)
        if next(lines, None) != head:
            raise AnswersOfAnotherRun(f"{path} has answers of another dataset, model, judge or tier. Move it.")
        for line in lines:
            answer = Answer(**line)
            if answer.text is not None:
                self.answers[answer.dialogue, answer.question] = answer

    def add(self, answer: Answer) -> None:
        self.answers[answer.dialogue, answer.question] = answer
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(answer)) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines. An incomplete one at the end, of a process that was killed, is removed from the file."""
    content = path.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        path.write_text(whole)
    for line in whole.splitlines():
        yield json.loads(line)


_PLACES: Final = frozenset(
    field.name.upper() for config in (SqlConfig, IndexConfig, MeshConfig) for field in fields(config)
) - {"EMBEDDER"}
"""The settings that say where a mesh listens and stores, and who may call it. Those of the environment may be those of
a deployment, which must not get the data of a benchmark."""


@asynccontextmanager
async def answering_mesh(directory: Path) -> AsyncIterator[Mnemesh]:
    """Runs a mesh on free ports with stores in `directory`; yields a client of it."""
    ports = free_ports(len(SERVICES))
    places = {spec.port_variable: str(port) for spec, port in zip(SERVICES, ports, strict=True)}
    with _environment(without_places(os.environ) | places | {"MNEMESH_DATA_DIR": str(directory / "data")}):
        config = MeshConfig.from_env()
        mesh = Supervisor(config, lambda line: print(f"  mesh: {line}", file=sys.stderr), processes=True)
        await mesh.start()
        try:
            async with _client(config) as client:
                yield client
        finally:
            await mesh.stop()


def without_places(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables without those that lead to another mesh or to its stores."""
    services = [f"{spec.name.upper()}_" for spec in SERVICES]
    return {name: value for name, value in environment.items() if not _is_place(name, services)}


def _is_place(variable: str, services: list[str]) -> bool:
    if not variable.startswith("MNEMESH_"):
        return False
    name = variable.removeprefix("MNEMESH_")
    own = [name, *(name.removeprefix(service) for service in services if name.startswith(service))]
    return name.endswith(("TARGET", "TOKEN")) or not _PLACES.isdisjoint(own)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replaces the environment, which the supervisor and the client read."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _client(config: MeshConfig) -> Mnemesh:
    return Mnemesh(
        config.address("orchestrator"),
        blocks=config.address("blocks"),
        recall=config.address("recall"),
        archival=config.address("archival"),
        tools=config.address("tools"),
    )


_LEFT_OUT: Final = frozenset({"a", "an", "the", "and"})
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ABSTAINS: Final = re.compile(
    r"no (?:such )?information|not (?:mentioned|available|stated|discussed)|n't (?:mentioned|know|say)", re.IGNORECASE
)


def score(question: Question, answer: str) -> float | None:
    """Returns a score between 0 and 1; None if words cannot score the answer.

    - A question without an answer in the dialogue scores 1 if the answer says so, else 0.
    - An expected list (`multi-hop`) is compared item by item: each expected item counts with its best match.
    - Of expected alternatives (`open-domain`, separated by semicolons) the first is compared.
    """
    if question.is_unanswerable:
        return float(abstains(answer))
    if question.judged_only or question.answer is None:
        return None
    if question.category == "multi-hop":
        expected, given = question.answer.split(","), answer.split(",")
        return sum(max(f1(each, item) for item in given) for each in expected) / len(expected)
    if question.category == "open-domain":
        return f1(question.answer.split(";")[0], answer)
    return f1(question.answer, answer)


def abstains(answer: str) -> bool:
    """Returns whether an answer says that the dialogue does not contain it."""
    return _ABSTAINS.search(answer) is not None


def f1(expected: str, given: str) -> float:
    """Returns the harmonic mean of precision and recall of the stems of `given`. Articles do not count."""
    wanted, found = Counter(_stems(expected)), Counter(_stems(given))
    same = (wanted & found).total()
    return 2 * same / (wanted.total() + found.total()) if same else 0.0


def _stems(text: str) -> list[str]:
    words = text.replace(",", "").lower().translate(_NO_PUNCTUATION).split()
    return [str(_stemmer().stemWord(word)) for word in words if word not in _LEFT_OUT]


@cache
def _stemmer() -> "snowballstemmer.porter_stemmer.PorterStemmer":
    return snowballstemmer.stemmer("porter")


TierName = Literal["recall", "archival"]
TOOLS: Final[Mapping[str, str]] = {"recall": "conversation_search", "archival": "archival_memory_search"}
MAX_STEPS: Final = 8
_PROMPTS: Final = Path(__file__).parent
READER_PROMPT: Final = (_PROMPTS / "reader_prompt.txt").read_text(encoding="utf-8")
JUDGE_PROMPT: Final = (_PROMPTS / "judge_prompt.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The models of a run."""

    model: str
    """The handle of the model that answers."""
    judge: str = ""
    """The handle of the model that judges; empty for none."""
    tier: TierName = "recall"
    pictures: bool = True
    concurrency: int = 4
    """The number of dialogues that are asked about at the same time."""


async def answer_all(client: Mnemesh, dialogues: Sequence[Dialogue], readers: Readers, file: AnswerFile) -> None:
    """Asks every question that has no answer in the file yet.

    Each question is asked in a conversation of its own, which is deleted afterwards: no answer is found by a search for
    another question.
    """
    slots = asyncio.Semaphore(readers.concurrency)
    judge = await _judge(client, readers.judge) if readers.judge else None

    async def ask_about(dialogue: Dialogue) -> None:
        asked = [each for each in answerable(dialogue) if (dialogue.id, each.id) not in file.answers]
        if not asked:
            return
        async with slots:
            reader = await _reader(client, dialogue, readers)
            for question in asked:
                file.add(await _answer(client, reader, judge, dialogue, question))

    try:
        async with asyncio.TaskGroup() as tasks:
            for dialogue in dialogues:
                tasks.create_task(ask_about(dialogue))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def answerable(dialogue: Dialogue) -> list[Question]:
    """Returns the questions whose answers can be scored."""
    return [each for each in dialogue.questions if each.answer is not None or each.is_unanswerable]


def summary(dialogues: Sequence[Dialogue], answers: Mapping[tuple[str, str], Answer]) -> dict[str, Any]:
    """Returns the scores of all questions and of each category. A failed turn scores 0 and counts as failed."""
    groups: dict[str, list[tuple[Question, Answer]]] = {"all": []}
    for dialogue in dialogues:
        for question in answerable(dialogue):
            answer = answers.get((dialogue.id, question.id))
            if answer is not None:
                groups["all"].append((question, answer))
                groups.setdefault(question.category, []).append((question, answer))
    return {name: _group(pairs) for name, pairs in sorted(groups.items(), key=lambda item: (item[0] != "all", item[0]))}


def _group(pairs: Sequence[tuple[Question, Answer]]) -> dict[str, Any]:
    by_words = [value for question, answer in pairs if (value := score(question, answer.text or "")) is not None]
    judged = [answer.is_correct for _, answer in pairs if answer.is_correct is not None]
    return {
        "count": len(pairs),
        "failed": sum(answer.text is None for _, answer in pairs),
        "f1": asdict(mean(by_words)) if by_words else None,
        "judged": asdict(share(judged)) if judged else None,
    }


async def _reader(client: Mnemesh, dialogue: Dialogue, readers: Readers) -> Agent:
    """Creates the agent of a dialogue and stores the dialogue where its tool searches."""
    archive_ids = []
    if readers.tier == "archival":
        archival = ArchivalTier(client.archives.stub, client.passages.stub, readers.pictures)
        await archival.store(dialogue)
        archive_ids = [archival.archive_ids[dialogue.id]]
    agent = await client.agents.create(
        name=f"reader {dialogue.id}"[:100],
        model=readers.model,
        system=READER_PROMPT,
        tools=[TOOLS[readers.tier]],
        archive_ids=archive_ids,
        include_base_tools=False,
    )
    if readers.tier == "recall":
        await RecallTier(client.messages.stub, readers.pictures).store_for(agent.id, dialogue)
    return agent


async def _judge(client: Mnemesh, model: str) -> Agent:
    return await client.agents.create(name="judge", model=model, system=JUDGE_PROMPT, include_base_tools=False)


async def _answer(
    client: Mnemesh, reader: Agent, judge: Agent | None, dialogue: Dialogue, question: Question
) -> Answer:
    when = f"\nThe question was asked on {question.asked_at:%d %B %Y}." if question.asked_at else ""
    started = time.perf_counter()
    try:
        text = await _ask_once(client, reader, f"{question.text}{when}")
    except MnemeshError as error:
        return Answer(dialogue=dialogue.id, question=question.id, text=None, error=str(error))
    seconds = round(time.perf_counter() - started, 2)
    judgement = await _judgement(client, judge, question, text) if judge is not None else None
    return Answer(dialogue=dialogue.id, question=question.id, text=text, is_correct=judgement, seconds=seconds)


async def _judgement(client: Mnemesh, judge: Agent, question: Question, text: str) -> bool | None:
    """Returns whether the judge calls an answer correct; None if it fails or replies neither."""
    expected = question.answer or ""
    if question.is_unanswerable:
        expected = f"The conversations do not contain the answer. {expected}".strip()
    try:
        reply = await _ask_once(
            client, judge, f"Question: {question.text}\nExpected answer: {expected}\nAnswer to grade: {text}"
        )
    except MnemeshError:
        return None
    word = reply.strip().strip("\"'*.!").lower().partition(" ")[0].strip(".,:;")
    return {"correct": True, "incorrect": False}.get(word)


async def _ask_once(client: Mnemesh, agent: Agent, text: str) -> str:
    """Returns the reply in a new conversation, of which nothing stays."""
    conversation = await client.conversations.create(conversations_pb2.Conversation(agent_id=agent.id))
    try:
        return await agent.ask(text, conversation_id=conversation.id, max_steps=MAX_STEPS)
    finally:
        with suppress(NotFound):
            await client.messages.stub.DeleteContext(
                recall.DeleteContextRequest(conversation_id=conversation.id, delete_messages=True)
            )
        await client.conversations.stub.DeleteConversation(
            conversations_service_pb2.DeleteConversationRequest(conversation_id=conversation.id)
        )
