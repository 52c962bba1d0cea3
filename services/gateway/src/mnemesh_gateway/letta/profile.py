"""The release of the Letta server whose behaviour is served where releases differ."""

from __future__ import annotations

from enum import StrEnum


class Profile(StrEnum):
    """A release. The newest is the default."""

    LETTA_0_16_1 = "0.16.1"
    LETTA_0_16_7 = "0.16.7"
