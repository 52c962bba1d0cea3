"""Answers of an agent that searches in the stored dialogues, and judgements of these answers by a model."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh_client import Mnemesh
from mnemesh_client.agent import Agent
from mnemesh_kit.errors import MnemeshError, NotFound

from benchmarks.datasets import Dialogue, Question
from benchmarks.memory.answer_file import Answer, AnswerFile
from benchmarks.memory.answer_scores import score
from benchmarks.memory.tiers import ArchivalTier, RecallTier
from benchmarks.metrics import mean, share

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
