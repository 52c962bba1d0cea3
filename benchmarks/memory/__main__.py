"""Scores memory on dialogues: `python -m benchmarks.memory --dataset FILE [--model openai/gpt-4.1-mini] …`."""

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError

from benchmarks.datasets import DatasetInvalid, Dialogue, read_dialogues
from benchmarks.memory.answers import AnswerFile, AnswersOfAnotherRun, Readers, answer_all, answering_mesh, summary
from benchmarks.memory.report import as_svg, as_text
from benchmarks.memory.retrieval import score
from benchmarks.memory.tiers import CONFIGURATIONS, ArchivalTier, RecallTier, Tier
from benchmarks.memory_services import ENGINES, RunningServices, running

TIERS: Final = ("recall", "archival")
_PASSED: Final = ("MNEMESH_EMBEDDER", "MNEMESH_RERANK")
"""The settings that the measured services take from the environment, by the beginning of their names."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description="Stores dialogues in recall and archival, and scores searches for the evidence of questions. "
        "With --model, an agent answers the questions with its search tool, and its answers are scored too.",
        epilog="The services take MNEMESH_EMBEDDER… and MNEMESH_RERANKER… from the environment; "
        "with --model, the mesh takes the keys of providers too.",
    )
    made.add_argument("--dataset", type=Path, required=True, help="in the format of LoCoMo or LongMemEval, or our own")
    made.add_argument("--dialogues", type=int, default=0, help="use the first N dialogues; 0: all (%(default)s)")
    made.add_argument("--tiers", default=",".join(TIERS), help="(%(default)s)")
    made.add_argument("--engines", default="sqlite", help=f"of {','.join(ENGINES)} (%(default)s)")
    made.add_argument(
        "--configurations", default="", help=f"of {','.join(CONFIGURATIONS)} (default: all that are configured)"
    )
    made.add_argument("--depths", default="1,5,10", help="numbers of first hits, at most 100 (%(default)s)")
    made.add_argument("--level", choices=("turn", "session"), default="turn", help="what is evidence (%(default)s)")
    made.add_argument("--no-pictures", action="store_true", help="leave out the descriptions of pictures")
    made.add_argument("--no-retrieval", action="store_true", help="score answers only")
    made.add_argument("--model", default="", help="the model that answers, as provider/model; default: no answers")
    made.add_argument("--judge", default="", help="the model that judges the answers; default: none")
    made.add_argument("--answer-tier", choices=TIERS, default="recall", help="where the agent searches (%(default)s)")
    made.add_argument("--concurrency", type=int, default=4, help="dialogues asked about at once (%(default)s)")
    made.add_argument("--out", type=Path, default=Path("build/memory"), help="directory of the report (%(default)s)")
    return made


async def retrieval(arguments: argparse.Namespace, dialogues: Sequence[Dialogue]) -> list[dict[str, Any]]:
    """Returns the scores of searches on each engine, tier and configuration."""
    depths = [int(depth) for depth in arguments.depths.split(",")]
    how = {name: CONFIGURATIONS[name] for name in arguments.configurations.split(",")}
    settings = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
    rows = []
    for engine in arguments.engines.split(","):
        with _directory() as directory:
            async with running(directory, engine, settings) as services:
                for tier in _tiers(services, arguments):
                    print(f"{tier.name} on {engine}: {len(dialogues)} dialogues", file=sys.stderr, flush=True)
                    found = await score(tier, engine, dialogues, how, depths, arguments.level)
                    rows += [row.as_json(depths) for row in found]
    return rows


async def answers(arguments: argparse.Namespace, dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    """Returns the scores of answers. Answers are kept in a file of the output directory."""
    run = {
        "dataset": hashlib.sha256(arguments.dataset.read_bytes()).hexdigest(),
        "model": arguments.model,
        "judge": arguments.judge,
        "tier": arguments.answer_tier,
        "pictures": not arguments.no_pictures,
    }
    file = AnswerFile(arguments.out / "answers.jsonl", run)
    readers = Readers(
        model=arguments.model,
        judge=arguments.judge,
        tier=arguments.answer_tier,
        pictures=not arguments.no_pictures,
        concurrency=arguments.concurrency,
    )
    with _directory() as directory:
        async with answering_mesh(directory) as client:
            await answer_all(client, dialogues, readers, file)
    return {**run, "categories": summary(dialogues, file.answers)}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, prints the tables, and writes JSON and plot."""
    arguments = parser().parse_args(argv)
    problem = _complete(arguments)
    if problem:
        print(f"benchmarks.memory: {problem}", file=sys.stderr)
        return 2
    try:
        dialogues = read_dialogues(arguments.dataset)
        report = asyncio.run(_report(arguments, dialogues[: arguments.dialogues or None]))
    except (DatasetInvalid, AnswersOfAnotherRun, MnemeshError, StartupError, RuntimeError) as error:
        print(f"benchmarks.memory: {error}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (arguments.out / "retrieval.svg").write_text(as_svg(report))
    print(as_text(report))
    print(f"\nwritten to {arguments.out}")
    return 0


async def _report(arguments: argparse.Namespace, dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "dataset": {
            "file": arguments.dataset.name,
            "dialogues": len(dialogues),
            "turns": sum(1 for dialogue in dialogues for _ in dialogue.turns()),
            "questions": sum(len(dialogue.questions) for dialogue in dialogues),
        },
        "level": arguments.level,
        "embedder": os.environ.get("MNEMESH_EMBEDDER", ""),
        "reranker": os.environ.get("MNEMESH_RERANKER", ""),
        "retrieval": [] if arguments.no_retrieval else await retrieval(arguments, dialogues),
    }
    if arguments.model:
        report["answers"] = await answers(arguments, dialogues)
    return report


def _complete(arguments: argparse.Namespace) -> str | None:
    """Adds the default of `configurations`. Returns what is wrong with the arguments."""
    reranker = bool(os.environ.get("MNEMESH_RERANKER"))
    if not arguments.configurations:
        arguments.configurations = ",".join(name for name in CONFIGURATIONS if reranker or name != "reranker")
    for option, known in (("tiers", TIERS), ("engines", ENGINES), ("configurations", CONFIGURATIONS)):
        unknown = set(getattr(arguments, option).split(",")) - set(known)
        if unknown:
            return f"--{option} has unknown {', '.join(sorted(unknown))}. Known: {', '.join(known)}."
    if "reranker" in arguments.configurations.split(",") and not reranker:
        return "The configuration reranker needs MNEMESH_RERANKER."
    depths = arguments.depths.split(",")
    if not all(depth.isdecimal() and 1 <= int(depth) <= 100 for depth in depths):
        return "--depths must be numbers from 1 to 100, separated by commas."
    if arguments.judge and not arguments.model:
        return "--judge needs --model."
    if arguments.no_retrieval and not arguments.model:
        return "--no-retrieval needs --model."
    return None


def _tiers(services: RunningServices, arguments: argparse.Namespace) -> Iterator[Tier]:
    pictures = not arguments.no_pictures
    for name in arguments.tiers.split(","):
        if name == "recall":
            yield RecallTier(services.recall, pictures)
        else:
            yield ArchivalTier(services.archives, services.passages, pictures)


@contextmanager
def _directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="mnemesh-memory-") as made:
        root = Path(made)
        root.chmod(0o711)  # PostgreSQL does not run as root and needs access to its own directory
        yield root


if __name__ == "__main__":
    sys.exit(main())
