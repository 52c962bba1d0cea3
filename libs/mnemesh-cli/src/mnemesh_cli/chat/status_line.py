"""The last line of the terminal while a turn runs: what the agent does, and since when."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_REFRESH_SECONDS: Final = 0.1
_LINES_BELOW: Final = 3


class StatusLine:
    """Shows the activity of the agent and the elapsed time below lines that can still change. Only for terminals.

    What is printed to the console meanwhile appears above it. It is removed at the end of the turn.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._enabled = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._started = 0.0
        self._activity = ""
        self._draft: Callable[[], Sequence[Text]] = tuple

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning of the turn."""
        return self._clock() - self._started

    @contextmanager
    def shown(self, activity: str) -> Iterator[None]:
        """Within it, the line is shown and the time counts."""
        self._started, self._activity, self._draft = self._clock(), activity, tuple
        if not self._enabled:
            yield
            return
        ticker = asyncio.get_running_loop().create_task(self._tick())
        self._show()
        try:
            yield
        finally:
            ticker.cancel()
            self._hide()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Within it, the line is removed, so that others can write to the terminal."""
        was_shown = self._live is not None
        self._hide()
        try:
            yield
        finally:
            if was_shown:
                self._show()

    def set_activity(self, activity: str) -> None:
        """Changes what the agent does."""
        if activity != self._activity:
            self._activity = activity
            self.refresh()

    def set_draft(self, draft: Callable[[], Sequence[Text]]) -> None:
        """Changes the lines that are not final yet. They are rendered at each refresh."""
        self._draft = draft

    def clear_draft(self) -> None:
        """Removes the lines that are not final yet."""
        self._draft = tuple

    def refresh(self) -> None:
        """Displays the current state. It happens several times a second by itself."""
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> Group:
        frame = _FRAMES[int(self.elapsed / _REFRESH_SECONDS) % len(_FRAMES)]
        status = Text(
            f"{frame} {self._activity} · {duration_text(self.elapsed)}", "dim", no_wrap=True, overflow="ellipsis"
        )
        visible = max(0, self._console.height - _LINES_BELOW)
        return Group(*(self._draft()[-visible:] if visible else ()), status)

    def _show(self) -> None:
        self._live = Live(
            self,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def _hide(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            self.refresh()


def duration_text(seconds: float) -> str:
    """Returns a duration as a person reads it: 3.2 s, 24 s, 2 min 5 s."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.05)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
