"""A minimal agent with the rehearsal as its model: a loop that runs its tools on real state."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from mnemesh_orchestrator.llm.model_catalog import Providers
from mnemesh_orchestrator.llm.port import AnsweredCall, ToolChoice
from mnemesh_orchestrator.llm.settings import LlmSettings
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.prompt.assembly import heartbeat
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from .windows import NOON, REQUIRED, ZONE, ask, everything, message, tool

REHEARSAL, CLIENT = Providers(LlmSettings()).resolve("mnemesh/rehearsal")

CORE = (
    tool("core_memory_append", ["label", "content"], label="string", content="string"),
    tool("core_memory_replace", ["label", "old_content", "new_content"], old_content="string", new_content="string"),
)
EDITOR = (
    tool("memory_insert", ["label", "new_str"], label="string", new_str="string", insert_line="integer"),
    tool("memory_replace", ["label", "old_str", "new_str"], label="string", old_str="string", new_str="string"),
)
OMNI = (tool("memory", ["command"], command="string", path="string", old_str="string", new_str="string"),)
ENDING = ("memory_finish_edits", "finish_rethinking_memory")
RETHINK = (tool("memory_rethink", ["label", "new_memory"], label="string", new_memory="string"),)
SEARCH = (
    tool("archival_memory_insert", ["content"], content="string", tags={"type": "array"}),
    tool("archival_memory_search", ["query"], query="string"),
    tool("conversation_search", ["query"], query="string", roles={"type": "array"}),
)


def with_v2_arguments(tools: tuple[ToolSchema, ...]) -> tuple[ToolSchema, ...]:
    """Returns the tools as a V2 agent offers them: thinking is required, and all but send_message have a heartbeat."""

    def with_added_arguments(each: ToolSchema) -> ToolSchema:
        properties: dict[str, Any] = {"thinking": {"type": "string"}, **each.parameters["properties"]}
        required = ["thinking", *each.parameters["required"]]
        if each.name != "send_message":
            properties["request_heartbeat"] = {"type": "boolean"}
            required.append("request_heartbeat")
        return ToolSchema(each.name, "", {"type": "object", "properties": properties, "required": required})

    return tuple(with_added_arguments(each) for each in (tool("send_message", ["message"], message="string"), *tools))


class Agent:
    """A minimal agent: a human block, a history, an archive, and tools that change them."""

    def __init__(self, tools: tuple[ToolSchema, ...] = CORE + SEARCH, *, v2: bool = False, human: str = "") -> None:
        self.v2 = v2
        self.tools = with_v2_arguments(tools) if v2 else tools
        self.human: str | None = human
        self.archive: list[str] = []
        self.history: list[Message] = []
        self.failing: dict[str, str] = {}
        self.replies = "[]"
        self.refusals: list[str] = []
        self.made: list[tuple[str, dict[str, Any]]] = []

    async def send(self, *said: str, words: Sequence[str] = ()) -> str:
        """Runs a turn and returns the reply to the user, "" if a tool ended the turn.

        `words` are system messages after the user's messages: what other agents of a group said.
        """
        self.made = []
        for text in said:
            self._add(Role.USER, text)
        for text in words:
            self._add(Role.SYSTEM, text, name=text.partition(": ")[0])
        for _ in range(12):
            choice = REQUIRED if self.v2 else ToolChoice()
            window = (message(0, Role.SYSTEM, self._system()), *self.history)
            _, answer = await everything(CLIENT, ask(REHEARSAL, *window, tools=self.tools, tool_choice=choice))
            if not answer.tool_calls:
                assert not self.v2, "a V2 agent must always call a tool"
                text = "".join(part.text for part in answer.content if isinstance(part, TextPart))
                self._add(Role.ASSISTANT, text)
                return text
            (call,) = answer.tool_calls
            if (reply := self._run(call)) is not None:
                return reply
        raise AssertionError("the rehearsal did not come to an end")

    def _run(self, call: AnsweredCall) -> str | None:
        arguments = json.loads(call.arguments)
        if self.v2:
            assert arguments.pop("thinking")
        wants_more = arguments.pop("request_heartbeat", None)
        self.made.append((call.name, arguments))
        number = len(self.history) + 1
        call_id = f"call_{number}"
        self.history.append(message(number, Role.ASSISTANT, tool_calls=(ToolCall(call_id, call.name, call.arguments),)))
        failure = self.failing.get(call.name)
        if call.name == "memory_rethink" and self.refusals:
            failure, self.human = "Error: the block was changed", self.refusals.pop(0)
        text = failure or self._act(call.name, arguments)
        status = ToolStatus.ERROR if failure else ToolStatus.SUCCESS
        self.history.append(
            message(number + 1, Role.TOOL, tool_returns=(ToolReturn.from_text(call_id, call.name, status, text),))
        )
        if call.name == "send_message":
            assert wants_more is None
            return str(arguments["message"])
        if call.name in ENDING:
            assert wants_more in (None, False)
            return ""
        if self.v2:
            assert wants_more is True
            self._add(Role.USER, heartbeat("returning control", NOON, ZONE), is_event=True)
        return None

    def _act(self, name: str, given: dict[str, Any]) -> str:
        acts: dict[str, Callable[[], str]] = {
            "core_memory_append": lambda: self._set(f"{self.human}\n{given['content']}"),
            "core_memory_replace": lambda: self._replace(given["old_content"], given["new_content"]),
            "memory_insert": lambda: self._set(f"{self.human}\n{given['new_str']}".strip("\n")),
            "memory_replace": lambda: self._replace(given["old_str"], given["new_str"]),
            "memory": lambda: (
                self._replace(given["old_str"], given["new_str"])
                if given["command"] == "str_replace"
                else self._set(f"{self.human}\n{given['insert_text']}")
            ),
            "memory_rethink": lambda: self._set(given["new_memory"]),
            "archival_memory_insert": lambda: self._store(given["content"]),
            "archival_memory_search": lambda: repr(
                [{"timestamp": "2026-01-20T10:00:00", "content": text, "tags": []} for text in self.archive]
            ),
            "conversation_search": lambda: self._recall(given["query"]),
            "send_message": lambda: "Sent message successfully.",
            "memory_finish_edits": lambda: "None",
            "store_memories": lambda: "Stored 1 memory.",
            "rethink_user_memory": lambda: self._set(given["new_memory"]),
            "finish_rethinking_memory": lambda: "None",
            "send_message_to_all_agents_in_group": lambda: self.replies,
            "send_message_to_agent_and_wait_for_reply": lambda: self.replies,
        }
        return acts[name]()

    def _recall(self, query: str) -> str:
        rows = [
            {"timestamp": "2026-01-20T10:00:00", "time_ago": "5m ago", "role": "user", "content": each.text}
            for each in reversed(self.history)
            if each.role is Role.USER and query.lower() in each.text.lower()
        ]
        return json.dumps({"message": f"Showing {len(rows)} results:", "results": rows})

    def _store(self, text: str) -> str:
        self.archive.append(text)
        return "None"

    def _set(self, value: str) -> str:
        self.human = value
        return "None"

    def _replace(self, old: str, new: str) -> str:
        assert self.human is not None
        assert self.human.count(old) == 1
        return self._set(self.human.replace(old, new))

    def _system(self) -> str:
        persona = "<persona>\n<value>\nI have a name: Sam.\n</value>\n</persona>\n"
        if self.human is None:
            return f"Base.\n<memory_blocks>\n{persona}</memory_blocks>"
        value = self.human
        human = (
            f"<human>\n<description>\nThe name is what matters.\n</description>\n<value>\n{value}\n</value>\n</human>"
        )
        return f"Base.\n<memory_blocks>\n{persona}\n{human}\n\n</memory_blocks>\n<memory_metadata>\n</memory_metadata>"

    def _add(self, role: Role, text: str, **fields: Any) -> None:
        self.history.append(message(len(self.history) + 1, role, text, **fields))
