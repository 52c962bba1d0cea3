"""A command in a pseudo-terminal."""

import asyncio
import os
import pty
import re
import signal
import sys
from collections.abc import Mapping

PROMPT = "› "
"""The prompt of the chat."""

# A background job of a shell ignores SIGINT, and its children inherit that. The commands of tests must not.
INTERRUPTIBLE = (
    "import signal\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from mnemesh_cli.main import main\n"
    "main()\n"
)


class Terminal:
    """A command in a pseudo-terminal, by default a chat. `environment` names the mesh."""

    def __init__(self, environment: Mapping[str, str], *arguments: str, command: str = "chat") -> None:
        self._environment, self._arguments = environment, (command, *arguments)
        self._screen, self._keyboard = "", -1
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        """Starts the chat."""
        self._keyboard, inner = pty.openpty()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", INTERRUPTIBLE, *self._arguments),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**self._environment, "TERM": "xterm", "COLUMNS": "200", "PATH": ""},
        )
        os.close(inner)

    async def see(self, text: str) -> str:
        """Waits until `text` is on the screen. Returns the text before it."""
        while text not in self._screen:
            try:
                piece = await asyncio.to_thread(os.read, self._keyboard, 65536)
            except OSError as error:  # the chat has exited
                raise AssertionError(f"{text!r} is not on the screen: {self._screen!r}") from error
            self._screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece.decode(errors="replace"))
        before, _, self._screen = self._screen.partition(text)
        return before

    def type(self, text: str) -> None:
        """Types text."""
        os.write(self._keyboard, text.encode())

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Sends a signal, by default that of Ctrl-C."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Waits for the chat to exit. Returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def close(self) -> None:
        """Kills the chat and closes the terminal."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        os.close(self._keyboard)
