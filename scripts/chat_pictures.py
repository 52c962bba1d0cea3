"""Writes docs/pictures/chat-dark.svg and chat-light.svg: a real chat with a running mesh, as tmux displays it.

    .venv/bin/python scripts/chat_pictures.py AGENT

The agent should be new. It needs tmux, and a mesh that `mnemesh chat` finds.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI, TerminalTheme
from rich.text import Text

PICTURES: Final = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS: Final = 80
ROWS: Final = 40
MESSAGES: Final = (
    "My name is Ada. Remember that the launch is on Friday.",
    "What do you know about the launch?",
)
THEMES: Final = {"dark": MONOKAI, "light": DEFAULT_TERMINAL_THEME}
PROMPT: Final = "› "
LONGEST_TURN_SECONDS: Final = 120.0


class Terminal:
    """A terminal of tmux that runs one command."""

    def __init__(self, command: list[str]) -> None:
        self._socket = f"mnemesh-pictures-{os.getpid()}"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, shlex.join(command))

    def send(self, text: str) -> None:
        """Types a line."""
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def screen(self) -> str:
        """Returns what is displayed, with its colours."""
        return self._tmux("capture-pane", "-e", "-p")

    def wait_for_prompt(self) -> None:
        """Waits until the chat asks for a message."""
        deadline = time.monotonic() + LONGEST_TURN_SECONDS
        while time.monotonic() < deadline:
            lines = Text.from_ansi(self.screen()).plain.rstrip().splitlines()
            if lines and lines[-1].rstrip() == PROMPT.rstrip():
                return
            time.sleep(0.2)
        raise SystemExit("The chat does not answer.")

    def close(self) -> None:
        """Ends the command."""
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *arguments], check=True, capture_output=True, text=True)
        return done.stdout


def main() -> None:
    """Records the chat and writes the pictures."""
    agent = sys.argv[1]
    terminal = Terminal([str(Path(sys.executable).with_name("mnemesh")), "chat", "--agent", agent])
    try:
        terminal.wait_for_prompt()
        for message in MESSAGES:
            terminal.send(message)
            time.sleep(0.5)  # the prompt disappears
            terminal.wait_for_prompt()
        screen = terminal.screen().rstrip()
    finally:
        terminal.close()
    PICTURES.mkdir(exist_ok=True)
    for name, theme in THEMES.items():
        write_picture(PICTURES / f"chat-{name}.svg", screen, theme)


def write_picture(path: Path, screen: str, theme: TerminalTheme) -> None:
    """Writes a screen as SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(screen), soft_wrap=True)
    # Without the fonts that rich names, as pages that show the picture load nothing else.
    lines = console.export_svg(title="mnemesh chat", theme=theme).splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
