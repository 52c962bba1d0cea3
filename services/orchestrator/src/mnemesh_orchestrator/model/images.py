"""The images that models are shown: their types, and bounds of their size and number."""

from dataclasses import dataclass
from typing import Final

from mnemesh_types.messages import ImagePart

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types that the APIs of models accept."""
MAX_IMAGE_BYTES: Final = 3_750_000
"""The largest image of a tool return: 5 MB of base64, which every API accepts."""
MAX_RETURNED_IMAGES: Final = 5
"""The number of images that one call of a tool returns."""
MAX_SHOWN_IMAGES: Final = 20
"""The number of images of tool returns in a request. APIs reduce the size of images in requests with more."""
MAX_SHOWN_BYTES: Final = 12_000_000
"""The size of all images of tool returns in a request."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The content of an image in the files service."""

    media_type: str
    data: bytes


def returned_images(images: tuple[ImagePart | str, ...]) -> tuple[tuple[ImagePart, ...], tuple[str, ...]]:
    """Returns the images that a call may return, and notes about the others.

    Args:
        images: inline images, or images of files; and notes of the tool itself about further ones.
    """
    kept: list[ImagePart] = []
    notes: list[str] = []
    for image in images:
        problem = image if isinstance(image, str) else _problem(image, len(kept))
        if problem is not None:
            notes.append(problem)
        elif isinstance(image, ImagePart):
            kept.append(image)
    return tuple(kept), tuple(notes)


def refused_image(media_type: str, size: int) -> str | None:
    """Returns why an image is not shown to models, as a note for them; None if it can be shown."""
    if media_type not in IMAGE_TYPES:
        return f"[An image of type {media_type}, {size:,} bytes, is not shown: models read PNG, JPEG, GIF and WebP.]"
    if size > MAX_IMAGE_BYTES:
        return f"[An image of type {media_type}, {size:,} bytes, is not shown: it exceeds {MAX_IMAGE_BYTES:,} bytes.]"
    return None


def _problem(image: ImagePart, count: int) -> str | None:
    if image.data is not None and (problem := refused_image(image.media_type or "", len(image.data))) is not None:
        return problem
    if count >= MAX_RETURNED_IMAGES:
        return f"[An image is not shown: a tool call returns at most {MAX_RETURNED_IMAGES} images.]"
    return None
