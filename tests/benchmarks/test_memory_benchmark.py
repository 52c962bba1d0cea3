"""The benchmark of memory scores searches and answers on dialogues, through the services of a mesh."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Answer as Scripted
from mnemesh_testkit.fakes.server import Reply, status
from mnemesh_testkit.mesh.in_process import Mesh

from benchmarks.datasets import Dialogue, Question, read_dialogues
from benchmarks.memory.__main__ import main
from benchmarks.memory.answers import (
    Answer,
    AnswerFile,
    AnswersOfAnotherRun,
    Readers,
    abstains,
    answer_all,
    f1,
    score,
    summary,
    without_places,
)
from benchmarks.memory.report import as_svg, as_text, estimate
from benchmarks.memory.retrieval import Row
from benchmarks.memory.retrieval import score as score_searches
from benchmarks.memory.tiers import CONFIGURATIONS, ArchivalTier, RecallTier

DATA = Path(__file__).parent / "data"
OFFLINE = {name: CONFIGURATIONS[name] for name in ("words", "vectors", "hybrid")}


@pytest.fixture
def ferry() -> Dialogue:
    (dialogue,) = read_dialogues(DATA / "locomo.json")
    return dialogue


@pytest.fixture
async def mesh(tmp_path: Path, fake_openai: FakeOpenAI) -> AsyncIterator[Mesh]:
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, in_memory=True) as mesh:
        yield mesh


async def test_searches_are_scored_in_both_tiers(mesh: Mesh, ferry: Dialogue) -> None:
    client = mesh.client
    tiers = (RecallTier(client.messages.stub, True), ArchivalTier(client.archives.stub, client.passages.stub, True))
    rows: list[Row] = []
    for tier in tiers:
        rows += await score_searches(tier, "sqlite", [ferry], OFFLINE, (1, 5))
    assert [(row.tier, row.configuration) for row in rows] == [
        (tier, name) for tier in ("recall", "archival") for name in OFFLINE
    ]
    for row in rows:
        found = row.as_json((1, 5))
        assert found["scores"]["any_at"]["5"]["count"] == 5, "one question has no evidence"
        assert set(found["categories"]) == {"single-hop", "temporal", "multi-hop", "adversarial"}
        assert found["scores"]["any_at"]["5"]["value"] > 0, (row.tier, row.configuration, row.outcomes)
        assert row.reranked == 0
    words = next(row for row in rows if row.configuration == "words")
    (bought,) = (each for each in words.outcomes if each.category == "single-hop")
    assert bought.ranks[0] is not None
    assert bought.ranks[0] <= 2

    report = {
        "dataset": {"file": "ferry & co.json", "dialogues": 1, "turns": 5, "questions": 6},
        "retrieval": [row.as_json((1, 5)) for row in rows],
    }
    text = as_text(report)
    assert "recall    sqlite  hybrid" in text
    assert estimate(rows[0].as_json((1, 5))["scores"]["all_at"]["5"]) in text
    drawn = ElementTree.fromstring(as_svg(report))
    assert len(drawn.findall("{*}rect")) == 1 + 2 + 2 * len(rows), "background, legend, two depths of each row"
    assert ElementTree.fromstring(as_svg({**report, "retrieval": []})) is not None


async def test_sessions_can_be_the_evidence(mesh: Mesh, ferry: Dialogue) -> None:
    tier = RecallTier(mesh.client.messages.stub, False)
    (row,) = await score_searches(tier, "sqlite", [ferry], {"hybrid": OFFLINE["hybrid"]}, (2,), "session")
    assert {rank for each in row.outcomes for rank in each.ranks} <= {1, 2, None}, "there are two sessions"
    assert any(each.any_at(1) for each in row.outcomes)


def answering(body: dict[str, Any]) -> Scripted:
    """Searches with the question, then answers with the first hit; as a judge, accepts answers that name the baker."""
    first, last = body["messages"][0]["content"], body["messages"][-1]
    if "You grade answers" in first:
        return "correct." if "baker" in last["content"].split("Answer to grade:")[1] else "Incorrect"
    if last["role"] == "tool":
        return "A baker" if "baker" in last["content"] else "No information available."
    return Reply(tool_calls=[("conversation_search", {"query": last["content"].rpartition('"message": ')[2]})])


async def test_answers_are_scored_judged_and_resumed(
    mesh: Mesh, fake_openai: FakeOpenAI, ferry: Dialogue, tmp_path: Path
) -> None:
    fake_openai.script = answering
    readers = Readers(model="openai/fake-model", judge="openai/fake-model")
    path = tmp_path / "answers.jsonl"
    await answer_all(mesh.client, [ferry], readers, AnswerFile(path, {"model": "m"}))

    answers = AnswerFile(path, {"model": "m"}).answers
    assert answers["ferry-1", "1"].text == "A baker"
    found = summary([ferry], answers)
    assert found["all"]["count"] == 6
    assert found["all"]["failed"] == 0
    assert found["single-hop"]["f1"]["value"] == pytest.approx(0.5)
    assert found["single-hop"]["judged"]["value"] == 1.0
    assert "F1" in as_text(
        {
            "dataset": {"file": "f", "dialogues": 1, "turns": 5, "questions": 6},
            "retrieval": [],
            "answers": {"model": "m", "judge": "m", "tier": "recall", "categories": found},
        }
    )
    returned = [
        message["content"]
        for request in fake_openai.requests
        for message in request.body["messages"]
        if message["role"] == "tool"
    ]
    assert returned
    for question in ferry.questions:
        assert not any(question.text in hits for hits in returned), "no answer finds another question"

    before = len(fake_openai.requests)
    await answer_all(mesh.client, [ferry], readers, AnswerFile(path, {"model": "m"}))
    assert len(fake_openai.requests) == before, "every question has its answer"


@pytest.mark.full
async def test_failed_answer_is_repeated_by_the_next_run(
    mesh: Mesh, fake_openai: FakeOpenAI, ferry: Dialogue, tmp_path: Path
) -> None:
    fake_openai.script = lambda body: status(401)
    readers, path = Readers(model="openai/fake-model", tier="archival"), tmp_path / "answers.jsonl"
    first = AnswerFile(path, {})
    await answer_all(mesh.client, [ferry], readers, first)
    assert summary([ferry], first.answers)["all"]["failed"] == 6
    assert all(answer.error for answer in first.answers.values())
    fake_openai.script = lambda body: "July 2023"
    again = AnswerFile(path, {})
    assert again.answers == {}
    await answer_all(mesh.client, [ferry], readers, again)
    assert summary([ferry], again.answers)["temporal"]["f1"]["value"] == pytest.approx((1 + 2 / 3) / 2)


def test_answers_of_another_run_are_refused_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, {"model": "a"}).add(Answer(dialogue="d", question="q", text="yes"))
    with path.open("a") as file:
        file.write('{"dialogue": "d", "ques')
    again = AnswerFile(path, {"model": "a"})
    assert list(again.answers) == [("d", "q")]
    again.add(Answer(dialogue="d", question="r", text="no"))
    assert len(AnswerFile(path, {"model": "a"}).answers) == 2
    with pytest.raises(AnswersOfAnotherRun, match="another dataset"):
        AnswerFile(path, {"model": "b"})


def asked(category: str, answer: str | None, **more: Any) -> Question:
    return Question(id="q", text="?", category=category, answer=answer, **more)


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (asked("single-hop", "the red boats"), "A red boat.", 1.0),
        (asked("single-hop", "red boat"), "green car", 0.0),
        (asked("multi-hop", "cello, violin"), "violin, a piano", 0.5),
        (asked("open-domain", "Likely yes; he likes ships"), "likely yes", 1.0),
        (asked("adversarial", None, is_unanswerable=True), "No information available.", 1.0),
        (asked("adversarial", None, is_unanswerable=True), "In July", 0.0),
        (asked("multi-session", "Three", judged_only=True), "Three", None),
    ],
)
def test_answers_are_compared_by_category(question: Question, answer: str, expected: float | None) -> None:
    assert score(question, answer) == expected


def test_the_answering_mesh_gets_no_place_of_another_mesh() -> None:
    kept = {"OPENAI_API_KEY": "k", "MNEMESH_OPENAI_BASE_URL": "u", "MNEMESH_EMBEDDER": "a/b", "MNEMESH_RERANKER": "c/d"}
    places = ("DATABASE_URL", "RECALL_DATABASE_URL", "QDRANT_URL", "DATA_DIR", "RECALL_TARGET", "PORT", "AUTH_KEY_FILE")
    tls = ("GRPC_TLS_CERT_FILE", "RECALL_METRICS_PORT", "TOKEN", "TARGET", "HOST")
    assert without_places({**kept, **{f"MNEMESH_{name}": "x" for name in (*places, *tls)}}) == kept


def test_f1_counts_stems() -> None:
    assert f1("two big boats", "boat") == pytest.approx(0.5)
    assert f1("", "boat") == 0.0
    assert abstains("That isn't mentioned anywhere.")
    assert not abstains("She mentioned a baker.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tiers", "recall,blocks"), "--tiers has unknown blocks"),
        (("--configurations", "reranker"), "needs MNEMESH_RERANKER"),
        (("--depths", "0"), "--depths must be"),
        (("--judge", "openai/m"), "--judge needs --model"),
        (("--dataset", "/nowhere.json"), "/nowhere.json cannot be read"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MNEMESH_RERANKER", raising=False)
    assert main(["--dataset", str(DATA / "locomo.json"), *arguments]) > 0
    assert message in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_command_writes_a_report(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    dataset = str(DATA / "longmemeval.json")
    assert main(["--dataset", dataset, "--engines", engine, "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert [row["engine"] for row in report["retrieval"]] == [engine] * 6
    assert all(row["scores"]["any_at"]["1"]["count"] == 1 for row in report["retrieval"])
    assert (out / "retrieval.svg").read_text().startswith("<svg")
    assert "single-session-user" not in capsys.readouterr().out, "one category has no lines of its own"
