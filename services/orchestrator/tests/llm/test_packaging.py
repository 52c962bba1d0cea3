"""The envelopes, byte for byte."""

import json
from datetime import UTC, datetime

from mnemesh_orchestrator.prompt.assembly import (
    heartbeat,
    login_event,
    package_tool_return,
    package_user_message,
    system_alert,
)
from mnemesh_types.messages import ToolStatus

WHEN = datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC)
ZONE = "America/Los_Angeles"


def test_user_message_has_local_time() -> None:
    assert package_user_message("Grüße, 王小明!", WHEN, ZONE) == (
        '{"type": "user_message", "message": "Grüße, 王小明!", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )


def test_envelope_contains_name_of_speaker() -> None:
    assert json.loads(package_user_message("Hi", WHEN, "Asia/Kolkata", "Ada")) == {
        "type": "user_message",
        "message": "Hi",
        "time": "2026-01-21 03:43:45 AM IST+0530",
        "name": "Ada",
    }


def test_tool_return_has_status() -> None:
    assert package_tool_return(ToolStatus.SUCCESS, "None", WHEN, ZONE) == (
        '{"status": "OK", "message": "None", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )
    assert '"status": "Failed"' in package_tool_return(ToolStatus.ERROR, "Error: no", WHEN, ZONE)


def test_events_render_as_expected() -> None:
    assert heartbeat("Function called using request_heartbeat=true, returning control", WHEN, ZONE) == (
        '{"type": "heartbeat", "reason": "[This is an automated system message hidden from the user] Function called '
        'using request_heartbeat=true, returning control", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )
    assert login_event(WHEN, ZONE) == (
        '{"type": "login", "last_login": "Never (first login)", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )
    assert system_alert("x", WHEN, "UTC") == (
        '{"type": "system_alert", "message": "x", "time": "2026-01-20 10:13:45 PM UTC+0000"}'
    )


def test_unknown_time_zone_is_rendered_in_utc() -> None:
    assert "10:13:45 PM UTC+0000" in package_user_message("Hi", WHEN, "Mars/Olympus_Mons")
