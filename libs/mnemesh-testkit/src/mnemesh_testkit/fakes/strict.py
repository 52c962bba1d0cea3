"""Providers that refuse a history as the real ones do: by its roles, or by what of their own answers comes back.

A strict provider is a script for a fake: it checks each request, and answers by another script if it accepts it.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from mnemesh_testkit.fakes.server import Fault, Reply, status

Answer = Callable[[dict[str, Any]], "str | Reply | Fault"]
Check = Callable[[list[dict[str, Any]]], "Fault | None"]

ALTERNATE: Final = "Conversation roles must alternate user/assistant/user/assistant/..."
ALTERNATE_AFTER_SYSTEM: Final = (
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
)
LAST_ROLE: Final = "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
NO_SYSTEM: Final = "System role not supported"
NOT_PASSED_BACK: Final = "The `reasoning_content` in the thinking mode must be passed back to the API."
MODIFIED: Final = (
    "messages.{0}.content.{1}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response."
)
NO_THINKING: Final = (
    "messages.{0}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is "
    "enabled, a final `assistant` message must start with a thinking block."
)
INVALID_SIGNATURE: Final = "messages.{0}.content.{1}: Invalid `signature` in `thinking` block"


def strict(answer: Answer, *checks: Check) -> Answer:
    """Returns a script that refuses the messages of a request by the first check that finds a fault."""

    def respond(body: dict[str, Any]) -> str | Reply | Fault:
        faults = (check(body["messages"]) for check in checks)
        return next((fault for fault in faults if fault is not None), None) or answer(body)

    return respond


def alternating(messages: list[dict[str, Any]]) -> Fault | None:
    """Refuses as the template of Mistral in vLLM: calls and their returns are skipped, and all others alternate."""
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    spoken = [each["role"] for each in rest if each["role"] != "tool" and not each.get("tool_calls")]
    if any((role == "user") != (place % 2 == 0) for place, role in enumerate(spoken)):
        return status(400, ALTERNATE_AFTER_SYSTEM, error_code="400")
    return _unpaired(rest)


def alternating_with_tools(messages: list[dict[str, Any]]) -> Fault | None:
    """Refuses as templates of Gemma with tools: the return of a tool is the user's turn."""
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    turns = ["assistant" if each["role"] == "assistant" else "user" for each in rest]
    if any(role != ("user", "assistant")[place % 2] for place, role in enumerate(turns)):
        return status(400, ALTERNATE)
    return None


def only_user_and_assistant(messages: list[dict[str, Any]]) -> Fault | None:
    """Refuses as the template of Gemma 2: no system message, no tools, and alternating roles."""
    if messages[0]["role"] == "system":
        return status(400, NO_SYSTEM)
    if any(each["role"] != ("user", "assistant")[place % 2] for place, each in enumerate(messages)):
        return status(500, f"Jinja Exception: {ALTERNATE}")
    return None


def mistral_order(messages: list[dict[str, Any]]) -> Fault | None:
    """Refuses as Mistral's API: an assistant message stands between the return of a tool and the user."""
    for one, other in pairwise(messages):
        if (one["role"], other["role"]) == ("tool", "user"):
            message = "Unexpected role 'user' after role 'tool'"
            return status(400, message, error_code="3230")
    if messages[-1]["role"] == "assistant":
        return status(400, LAST_ROLE)
    return None


def without_fields(*names: str) -> Check:
    """Returns a check that refuses fields of the assistant's messages, as Mistral and Cerebras do."""

    def check(messages: list[dict[str, Any]]) -> Fault | None:
        for place, each in enumerate(messages):
            for name in names:
                if each["role"] == "assistant" and name in each:
                    path = f"messages.{place}.assistant.{name}"
                    return status(422, f"body.{path}: Extra inputs are not permitted")
        return None

    return check


def with_reasoning(refusal: str = NOT_PASSED_BACK, *, may_be_empty: bool = True) -> Check:
    """Returns a check that requires `reasoning_content` in the assistant's messages, as DeepSeek and Kimi do."""

    def check(messages: list[dict[str, Any]]) -> Fault | None:
        for each in messages:
            given = each.get("reasoning_content")
            if each["role"] == "assistant" and (given is None or (not given and not may_be_empty)):
                return status(400, refusal)
        return None

    return check


class Echo:
    """A server of chat completions that refuses its own messages if any of their fields does not come back.

    Other messages of the assistant must not have such fields. It knows its messages by their text and the ids of their
    calls, which its script chooses.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sent: dict[str, Reply] = {}
        self.refused = 0

    def __call__(self, body: dict[str, Any]) -> str | Reply | Fault:
        """Answers one request."""
        for each in body["messages"]:
            if each["role"] == "assistant" and (fault := self._checked(each)) is not None:
                self.refused += 1
                return fault
        answer = self._answer(body)
        if isinstance(answer, Reply):
            self._sent[_key(answer.text, [str(call.id) for call in answer.calls])] = answer
        return answer

    def _checked(self, message: dict[str, Any]) -> Fault | None:
        calls = message.get("tool_calls") or []
        others = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
        reply = self._sent.get(_key(message.get("content"), [call["id"] for call in calls]))
        expected = dict(reply.fields) if reply is not None else {}
        if reply is not None and reply.reasoning is not None:
            expected["reasoning_content"] = reply.reasoning
        if others != expected:
            raw = json.dumps({"error": {"message": f"reasoning_details: expected {expected}, got {others}"}})
            return _openrouter(raw)
        of_calls = [{k: v for k, v in call.items() if k not in ("id", "type", "function")} for call in calls]
        if of_calls != ([dict(call.fields) for call in reply.calls] if reply is not None else [{} for _ in calls]):
            return status(400, f"Function call is missing a thought_signature in functionCall parts: {of_calls}")
        return None


class SignedThinking:
    """Anthropic's checks of thinking: of its signatures, of the model that wrote it, and of the order of blocks."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._written: dict[str, str] = {}
        self._orders: dict[str, list[str]] = {}
        self.refused = 0

    def __call__(self, body: dict[str, Any]) -> str | Reply | Fault:
        """Answers one request."""
        if (fault := self._checked(body)) is not None:
            self.refused += 1
            return fault
        answer = self._answer(body)
        if isinstance(answer, Reply):
            order = [_block_name(block) for block in answer.blocks]
            for name in order:
                if name.startswith("sig:"):
                    self._written[name], self._orders[name] = body["model"], order
        return answer

    def _checked(self, body: dict[str, Any]) -> Fault | None:
        answers = [(place, each) for place, each in enumerate(body["messages"]) if each["role"] == "assistant"]
        for place, each in answers:
            names = [_block_name(block) for block in each["content"]]
            signed = [name for name in names if name.startswith("sig:")]
            for name in signed:
                if self._written.get(name) != body["model"]:
                    return status(400, INVALID_SIGNATURE.format(place, names.index(name)))
            if place == answers[-1][0] and signed and names != self._orders[signed[0]]:
                return status(400, MODIFIED.format(place, names.index(signed[0])))
            if body.get("thinking") and "tool_use" in names and not signed and place == answers[-1][0]:
                return status(400, NO_THINKING.format(place))
        return None


def _block_name(block: Any) -> str:
    match block["type"]:
        case "thinking":
            return f"sig:{block['signature']}:{block['thinking']}"
        case "text":
            return f"text:{block['text']}"
    return str(block["type"])


def _key(content: Any, call_ids: Sequence[str]) -> str:
    return json.dumps([content or None, list(call_ids)])


def _openrouter(raw: str) -> Fault:
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    return Fault(kind="body", status=400, body=json.dumps(body).encode(), headers={"content-type": "application/json"})


def _unpaired(messages: list[dict[str, Any]]) -> Fault | None:
    waiting: list[str] = []
    for each in messages:
        if each["role"] == "tool":
            if each["tool_call_id"] not in waiting:
                return status(400, "Unexpected role 'tool' after role 'user'")
            waiting.remove(each["tool_call_id"])
        elif waiting:
            return status(400, "Not the same number of function calls and responses")
        waiting += [call["id"] for call in each.get("tool_calls") or ()]
    return None
