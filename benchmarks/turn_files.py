"""Counts the files and functions that a turn executes: `python -m benchmarks.turn_files`."""

import argparse
import asyncio
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn

_WARM_UP_TURNS: Final = 3
_COUNTED_TURNS: Final = 4
_INLINED: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<module>"})
_PACKAGE: Final = re.compile(r"/src/(mnemesh_\w+)/(.*)")
_ANSWER: Final = Reply(text="Hello.")
_SEARCH: Final = Reply(tool_calls=[("archival_memory_search", {"query": "coffee"})])
TURNS: Final[dict[str, Sequence[Reply]]] = {"plain turn": [_ANSWER], "turn with an archival search": [_SEARCH, _ANSWER]}
"""The answers of the model in each kind of turn."""


class FunctionCounter:
    """Records the functions of mnemesh's packages that run, in every thread that starts after `install`.

    Methods, nested functions, and lambdas count; comprehensions and generator expressions do not, because only some
    versions of Python run them in a frame of their own. The testkit, which sends the messages, does not count.
    """

    def __init__(self) -> None:
        self._is_counting = False
        self._codes: Counter[CodeType] = Counter()

    def install(self) -> None:
        """Installs the profile function."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Removes the profile function."""
        threading.setprofile(None)
        sys.setprofile(None)

    def start(self) -> None:
        """Starts to count from zero."""
        self._codes.clear()
        self._is_counting = True

    def stop(self) -> dict[str, dict[str, int]]:
        """Stops counting. Returns the calls of each function, by its file: the package and the path inside it."""
        self._is_counting = False
        found: dict[str, dict[str, int]] = {}
        for code, calls in self._codes.items():
            match = _PACKAGE.search(code.co_filename)
            if match is not None and match[1] != "mnemesh_testkit":
                found.setdefault(f"{match[1]}/{match[2]}", {})[f"{code.co_qualname}:{code.co_firstlineno}"] = calls
        return found

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_counting and event == "call" and frame.f_code.co_name not in _INLINED:
            self._codes[frame.f_code] += 1


async def count_turn(counter: FunctionCounter, data_dir: Path, replies: Sequence[Reply]) -> dict[str, dict[str, int]]:
    """Counts turns of a `letta_v1_agent` from the fourth on, each from SendMessage to the last event of its stream."""
    async with (
        FakeOpenAI(list(replies) * (_WARM_UP_TURNS + _COUNTED_TURNS)) as model,
        Mesh(data_dir, openai_base_url=model.base_url, model="openai/fake-model") as mesh,
    ):
        agent = await mesh.client.agents.create(blocks={"human": "Ada."})
        await agent.remember("Ada drinks coffee without milk.")
        for _ in range(_WARM_UP_TURNS):
            await turn(agent, "Hello.")
        found: list[dict[str, dict[str, int]]] = []
        for _ in range(_COUNTED_TURNS):
            await asyncio.sleep(0.2)
            counter.start()
            await turn(agent, "Hello.")
            found.append(counter.stop())
        return in_all(found)


def in_all(found: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Returns the functions that every turn called, with the calls of the first: background tasks are left out."""
    first, *others = found
    common = {
        file: {name: calls for name, calls in functions.items() if all(name in other.get(file, {}) for other in others)}
        for file, functions in first.items()
    }
    return {file: functions for file, functions in common.items() if functions}


def main() -> int:
    """Counts and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turn_files", description=__doc__)
    parser.add_argument("--list", metavar="PACKAGE", help="also print the files of a package, and their functions")
    arguments = parser.parse_args()
    counter = FunctionCounter()
    counter.install()
    for kind, replies in TURNS.items():
        with tempfile.TemporaryDirectory(prefix="mnemesh-turn-files-") as data_dir:
            found = asyncio.run(count_turn(counter, Path(data_dir), replies))
        if arguments.list:
            for file in sorted(file for file in found if file.startswith(f"{arguments.list}/")):
                print(f"{len(found[file]):4} {file}")
                for name, calls in found[file].items():
                    print(f"       {name} ({calls})")
        for label, part in (("orchestrator", "mnemesh_orchestrator/"), ("all packages", "")):
            counts = [len(functions) for file, functions in found.items() if file.startswith(part)]
            print(f"{kind}, {label}: {len(counts)} files, {sum(counts)} functions")
    counter.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
