"""A circuit breaker: after repeated failures, calls are not attempted for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from mnemesh_kit.backoff import Backoff

FAILURES: Final = 3
PAUSE: Final = Backoff(first=5.0, maximum=60.0, jitter=0.25)


class Admission(Enum):
    """The admission of a call."""

    USUAL = "usual"
    TRIAL = "trial"


class Breaker:
    """Decides whether a call is attempted.

    After `failures` in a row it refuses calls for a pause. Then it admits one trial call: its success admits all again,
    its failure starts a longer pause. For one event loop.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        pause: Backoff = PAUSE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = failures
        self._pause = pause
        self._monotonic = monotonic
        self._failures = 0
        self._pauses = 0
        self._until = 0.0
        self._trial_runs = False

    @property
    def is_open(self) -> bool:
        """Whether the last calls failed so often that only trial calls are admitted."""
        return self._failures >= self._allowed

    def admit(self) -> Admission | None:
        """Returns how a call is admitted now, None if it is refused.

        Each admitted call ends with `succeeded`, `failed` or `abandoned`.
        """
        if not self.is_open:
            return Admission.USUAL
        if self._trial_runs or self._monotonic() < self._until:
            return None
        self._trial_runs = True
        return Admission.TRIAL

    def succeeded(self) -> None:
        """Records a success."""
        self._failures = self._pauses = 0
        self._trial_runs = False

    def failed(self, admission: Admission) -> float | None:
        """Records a failure. Returns the seconds of the pause that it starts, None if it starts none."""
        if admission is Admission.TRIAL:
            self._trial_runs = False
        self._failures += 1
        if admission is Admission.USUAL and self._failures != self._allowed:
            return None
        self._pauses += 1
        pause = self._pause.delay(self._pauses)
        self._until = self._monotonic() + pause
        return pause

    def abandoned(self, admission: Admission) -> None:
        """Records that the caller gave up, which says nothing about the called service."""
        if admission is Admission.TRIAL:
            self._trial_runs = False
