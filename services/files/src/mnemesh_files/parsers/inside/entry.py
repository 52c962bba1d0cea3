"""The task of the sandbox: parses one document and returns it, or the reason why it cannot be parsed, as JSON."""

import json
import sys
import traceback
from dataclasses import replace
from importlib import import_module
from typing import Final

from mnemesh_files.parsers.document import (
    Budget,
    Cause,
    DocumentUnreadable,
    ParsedDocument,
    ParseLimits,
    hidden_characters_warning,
)
from mnemesh_files.parsers.formats import Format

# Imported for the document that needs it only: imports are most of the time of a small document.
_MODULES: Final = {
    Format.HTML: "html",
    Format.PDF: "pdf",
    Format.OFFICE: "office",
    Format.RTF: "rtf",
    Format.IMAGE: "images",
}


def parse(content: bytes, document_format: str, media_type: str, limits: dict[str, float]) -> str:
    """Returns `{"document": ...}`, or `{"cause": ..., "message": ...}`.

    Args:
        content: The bytes of the file.
        document_format: A value of `Format`.
        media_type: The media type as detected by the service.
        limits: Those of `ParseLimits`.
    """
    budget = Budget(ParseLimits(**limits))  # type: ignore[arg-type]
    try:
        module = import_module(f"{__package__}.{_MODULES[Format(document_format)]}")
        document: ParsedDocument = module.parse(content, media_type, budget)
        return f'{{"document": {_with_warnings(document, budget).to_json()}}}'
    except DocumentUnreadable as error:
        return _failure(error.cause, error.message)
    except MemoryError:
        text = f"The document needs more than {budget.limits.memory_mb:,} MB of memory. Divide it into smaller ones."
        return _failure(Cause.TOO_LARGE, text)
    except RecursionError:
        return _failure(Cause.TOO_LARGE, "The document is nested too deeply. Save it again in a simpler form.")
    except Exception:
        traceback.print_exc(limit=-8, file=sys.stderr)
        return _failure(
            Cause.FAILED,
            "The document cannot be read: it is damaged, or has content that the parser does not know. Open it in its "
            "application and save it again, or export it as PDF.",
        )


def _with_warnings(document: ParsedDocument, budget: Budget) -> ParsedDocument:
    warnings = (*document.warnings, *budget.warnings, *hidden_characters_warning(document.text))
    return replace(document, warnings=warnings)


def _failure(cause: Cause, message: str) -> str:
    return json.dumps({"cause": cause, "message": message})
