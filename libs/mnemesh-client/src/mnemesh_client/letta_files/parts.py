"""Parts of the content of Letta's messages, in both directions."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mnemesh.types.v1.message_pb2 import (
    ContentPart,
    ImagePart,
    InlineImage,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
)
from mnemesh_kit.unicode import well_formed

_EVENT_FIELDS: Final = {
    "heartbeat": frozenset({"type", "reason", "time"}),
    "login": frozenset({"type", "last_login", "time"}),
    "system_alert": frozenset({"type", "message", "time"}),
}


def content_parts(parts: Iterable[dict[str, Any]], *, unpack: bool = False) -> list[ContentPart]:
    """Returns the parts of a content. Calls and returns are left out, as messages hold them elsewhere.

    Args:
        parts: Letta's parts.
        unpack: takes the words of a user out of the envelope that Letta puts around them. mnemesh stores the words.

    Raises:
        ValueError: a part is of an unknown type, or an image has no data.
    """
    return [_part(part, unpack=unpack) for part in parts if part["type"] not in ("tool_call", "tool_return")]


def is_event(parts: Sequence[dict[str, Any]]) -> bool:
    """Returns whether the content of a user message is one of Letta's events, which only its envelope marks there.

    The fields must be exactly those of the envelope, so that JSON that a user pasted stays the user's.
    """
    return len(parts) == 1 and _is_envelope_of_event(parts[0].get("text") or "")


def _is_envelope_of_event(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(envelope, dict) and envelope.keys() == _EVENT_FIELDS.get(str(envelope.get("type")))


def wrapped_words(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part of a user's content in Letta's form. Words that a reader would take for an envelope are in one."""
    text = part.get("text") or ""
    if part["type"] != "text" or not (_words(text) != text or _is_envelope_of_event(text)):
        return part
    return {**part, "text": json.dumps({"type": "user_message", "message": text}, ensure_ascii=False)}


def letta_parts(parts: Iterable[ContentPart]) -> list[dict[str, Any]]:
    """Returns the parts of a content in Letta's form."""
    return [_letta_part(part) for part in parts]


def _part(part: dict[str, Any], *, unpack: bool) -> ContentPart:
    signature = part.get("signature")
    match part["type"]:
        case "text":
            text = well_formed(part.get("text") or "")
            return ContentPart(text=TextPart(text=_words(text) if unpack else text, signature=signature))
        case "image":
            return ContentPart(image=_image(part["source"]))
        case "reasoning":
            text = well_formed(part.get("reasoning") or "")
            return ContentPart(
                reasoning=ReasoningPart(text=text, is_native=bool(part.get("is_native")), signature=signature)
            )
        case "redacted_reasoning":
            return ContentPart(redacted_reasoning=RedactedReasoningPart(data=part["data"]))
        case "omitted_reasoning":
            return ContentPart(omitted_reasoning=OmittedReasoningPart(signature=signature))
        case "summarized_reasoning":
            summaries = [well_formed(item["text"]) for item in part.get("summary") or ()]
            encrypted = part.get("encrypted_content")
            return ContentPart(
                summarized_reasoning=SummarizedReasoningPart(
                    id=part.get("id") or "", summaries=summaries, encrypted_content=encrypted
                )
            )
        case other:
            raise ValueError(f"a part of its content has the unknown type {other!r}")


def _words(text: str) -> str:
    """The words in a packaged user message; any other text as it is."""
    if not text.startswith("{"):
        return text
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(envelope, dict) and envelope.get("type") == "user_message" and "message" in envelope:
        words = envelope["message"]
        return words if isinstance(words, str) else text
    return text


def _image(source: dict[str, Any]) -> ImagePart:
    detail = source.get("detail")
    if source.get("data"):
        try:
            data = base64.b64decode(source["data"], validate=True)
        except binascii.Error as error:
            raise ValueError("the data of an image is not base64") from error
        return ImagePart(
            inline=InlineImage(data=data, media_type=source.get("media_type") or "image/png"), detail=detail
        )
    if source.get("url"):
        return ImagePart(url=source["url"], detail=detail)
    raise ValueError("an image has neither data nor a URL")


def _letta_part(part: ContentPart) -> dict[str, Any]:
    match part.WhichOneof("part"):
        case "text":
            return {"type": "text", "text": part.text.text, "signature": _optional(part.text, "signature")}
        case "image":
            return {"type": "image", "source": _letta_image(part.image)}
        case "reasoning":
            reasoning = part.reasoning
            return {
                "type": "reasoning",
                "is_native": reasoning.is_native,
                "reasoning": reasoning.text,
                "signature": _optional(reasoning, "signature"),
            }
        case "redacted_reasoning":
            return {"type": "redacted_reasoning", "data": part.redacted_reasoning.data}
        case "summarized_reasoning":
            summarized = part.summarized_reasoning
            summary = [{"index": index, "text": text} for index, text in enumerate(summarized.summaries)]
            return {
                "type": "summarized_reasoning",
                "id": summarized.id,
                "summary": summary,
                "encrypted_content": summarized.encrypted_content,
            }
        case _:
            return {"type": "omitted_reasoning", "signature": _optional(part.omitted_reasoning, "signature")}


def _letta_image(image: ImagePart) -> dict[str, Any]:
    if image.WhichOneof("source") == "inline":
        data = base64.b64encode(image.inline.data).decode()
        return {
            "type": "base64",
            "media_type": image.inline.media_type,
            "data": data,
            "detail": _optional(image, "detail"),
        }
    return {"type": "url", "url": image.url}


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
