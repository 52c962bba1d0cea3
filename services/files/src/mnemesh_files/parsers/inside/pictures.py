"""Pictures of the pages of a PDF, for a model that reads pages without text."""

from __future__ import annotations

import base64
import io
import json
from typing import Final

from mnemesh_files.parsers.inside.pdfium import pdfium

_LONGEST_SIDE: Final = 1_600
_QUALITY: Final = 75


def page_pictures(content: bytes, pages: list[int]) -> str:
    """Returns a JSON list of pages as JPEG in base64; "" for a page that cannot be drawn.

    Args:
        content: The PDF.
        pages: The numbers of the pages, from 1.
    """
    pdf = pdfium.PdfDocument(content)
    return json.dumps([_picture(pdf, page - 1) for page in pages])


def _picture(pdf: pdfium.PdfDocument, index: int) -> str:
    try:
        page = pdf[index]
        longest = max(page.get_size())
        if not longest > 0:  # also if it is no number
            return ""
        image = page.render(scale=_LONGEST_SIDE / longest).to_pil().convert("RGB")
    except (pdfium.PdfiumError, ValueError, OverflowError):
        return ""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()
