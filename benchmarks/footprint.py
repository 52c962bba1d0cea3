"""Counts the functions and files of a service that one plain turn runs: `python -m benchmarks.footprint`."""

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn

_WARM_UP_TURNS = 1
_INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<module>"})


class FunctionCounter:
    """Records the functions of one package that run, in every thread that starts after `install`.

    Methods, nested functions, and lambdas count; comprehensions and generator expressions do not, because only some
    versions of Python run them in a frame of their own.
    """

    def __init__(self, package: str) -> None:
        self._part = f"/{package}/"
        self._is_counting = False
        self.functions: Counter[CodeType] = Counter()

    def install(self) -> None:
        """Installs the profile function."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def start(self) -> None:
        """Starts to count."""
        self._is_counting = True

    def stop(self) -> None:
        """Stops counting and removes the profile function."""
        self._is_counting = False
        threading.setprofile(None)
        sys.setprofile(None)

    @property
    def files(self) -> Counter[str]:
        """The number of functions by file, relative to the package."""
        return Counter(code.co_filename.partition(self._part)[2] for code in self.functions)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self._is_counting and event == "call" and self._part in code.co_filename and code.co_name not in _INLINED:
            self.functions[code] += 1


async def count_turn(counter: FunctionCounter, data_dir: Path) -> None:
    """Counts one one-step turn of a `letta_v1_agent`, from SendMessage to the last event of its stream."""
    async with (
        FakeOpenAI([Reply(text="Hello.")] * (_WARM_UP_TURNS + 1)) as model,
        Mesh(data_dir, openai_base_url=model.base_url, model="openai/fake-model") as mesh,
    ):
        agent = await mesh.client.agents.create(blocks={"human": "Ada."})
        for _ in range(_WARM_UP_TURNS):
            await turn(agent, "Hello.")
        await asyncio.sleep(0.2)
        counter.start()
        await turn(agent, "Hello.")
        counter.stop()


def main() -> int:
    """Counts and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--package", default="mnemesh_orchestrator", help="the package to count (%(default)s)")
    parser.add_argument("--list", action="store_true", help="also print the files, and the functions of each")
    arguments = parser.parse_args()
    counter = FunctionCounter(arguments.package)
    counter.install()
    with tempfile.TemporaryDirectory(prefix="mnemesh-footprint-") as data_dir:
        asyncio.run(count_turn(counter, Path(data_dir)))
    if arguments.list:
        for file, count in sorted(counter.files.items()):
            print(f"{count:4} {file}")
            for code, calls in counter.functions.items():
                if code.co_filename.endswith(f"{arguments.package}/{file}"):
                    print(f"       {code.co_qualname} ({calls})")
    print(f"functions: {len(counter.functions)}")
    print(f"files: {len(counter.files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
