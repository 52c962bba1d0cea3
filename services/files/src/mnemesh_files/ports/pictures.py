"""The Protocol of a model that reads pictures."""

from __future__ import annotations

from typing import Protocol


class PictureUnreadable(Exception):
    """The model returned no text for a picture. The message states the cause, as the end of a sentence."""


class PictureReader(Protocol):
    """Turns pictures into text."""

    async def read(self, picture: bytes, media_type: str) -> str:
        """Returns the text in a picture and what it shows, as Markdown.

        Args:
            picture: The file of the picture.
            media_type: Its type: image/png, image/jpeg, image/gif or image/webp.

        Raises:
            PictureUnreadable: The model cannot be reached, refuses the picture, or answers without text.
        """
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...
