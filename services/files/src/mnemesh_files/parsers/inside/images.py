"""Images: their type and size. Their pixels are decoded only to find out whether the file is complete."""

import io
import warnings
from typing import Final

from PIL import Image, UnidentifiedImageError

from mnemesh_files.parsers.document import Budget, Cause, DocumentKind, DocumentUnreadable, ParsedDocument

_CHECKED_PIXELS: Final = 30_000_000
_NOT_READ: Final = ("image/heic",)


def parse(content: bytes, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an image, without text.

    Raises:
        DocumentUnreadable: It is damaged or has too many pixels.
    """
    if media_type in _NOT_READ:
        return ParsedDocument(DocumentKind.IMAGE, media_type)
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # checked below, with a limit of our own
    try:
        image = Image.open(io.BytesIO(content))
        width, height = image.size
        pixels = width * height
        if pixels > budget.limits.pixels:
            text = (
                f"The image has {width:,} × {height:,} pixels; at most {budget.limits.pixels:,} are allowed. Reduce it."
            )
            raise DocumentUnreadable(Cause.TOO_LARGE, text)
        if pixels <= _CHECKED_PIXELS:
            image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, EOFError) as error:
        text = "The image is damaged or incomplete. Open it in an application and save it again."
        raise DocumentUnreadable(Cause.DAMAGED, text) from error
    return ParsedDocument(DocumentKind.IMAGE, media_type, image_width=width, image_height=height)
