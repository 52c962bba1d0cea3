"""The JSON in which services store these types. A change here needs a migration in recall and in the orchestrator."""

import msgspec
import pytest
from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ClientReturn,
    ContentPart,
    Deny,
    ImagePart,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

RETURN = (
    '{"tool_call_id":"c","name":"t","status":"error","content":[{"type":"text","text":"x"}],"stdout":["o"],"stderr":[]}'
)


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (TextPart("hi"), '{"type":"text","text":"hi"}'),
        (TextPart("hi", "s"), '{"type":"text","text":"hi","signature":"s"}'),
        (ImagePart(data=b"\x01", media_type="image/png"), '{"type":"image","data":"AQ==","media_type":"image/png"}'),
        (ImagePart(url="u", detail="low"), '{"type":"image","url":"u","detail":"low"}'),
        (ReasoningPart("r", True), '{"type":"reasoning","text":"r","is_native":true}'),
        (RedactedReasoningPart("d"), '{"type":"redacted","data":"d"}'),
        (OmittedReasoningPart(), '{"type":"omitted"}'),
        (SummarizedReasoningPart("i", ("a",)), '{"type":"summarized","id":"i","summaries":["a"]}'),
    ],
)
def test_content_parts(part: ContentPart, stored: str) -> None:
    assert msgspec.json.encode(part).decode() == stored
    assert msgspec.json.decode(stored, type=ContentPart) == part


def test_tool_calls_and_returns() -> None:
    call = ToolCall("c", "t", "{}")
    assert msgspec.json.encode(call) == b'{"id":"c","name":"t","arguments":"{}"}'
    returned = ToolReturn.from_text("c", "t", ToolStatus.ERROR, "x", ("o",))
    assert msgspec.json.encode(returned).decode() == RETURN
    assert msgspec.json.decode(RETURN, type=ToolReturn) == returned


@pytest.mark.parametrize(
    ("decision", "stored"),
    [
        (Approve("c"), '{"type":"approve","tool_call_id":"c"}'),
        (Deny("c", "no"), '{"type":"deny","tool_call_id":"c","reason":"no"}'),
        (
            ClientReturn("c", ToolReturn.from_text("c", "t", ToolStatus.ERROR, "x", ("o",))),
            '{"type":"return","tool_call_id":"c","return":' + RETURN + "}",
        ),
    ],
)
def test_approval_decisions(decision: ApprovalDecision, stored: str) -> None:
    assert msgspec.json.encode(decision).decode() == stored
    assert msgspec.json.decode(stored, type=ApprovalDecision) == decision
