"""Runs the built-in tools over the clients of the other services."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.builtin import code, core_memory, search, voice, web
from mnemesh_orchestrator.builtin.agent_messages import AgentMessages
from mnemesh_orchestrator.builtin.arguments import ParseFailure, check
from mnemesh_orchestrator.builtin.call import BuiltinCall, OptionalCalls, Refused, WithImages
from mnemesh_orchestrator.builtin.core_memory import run_command
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.builtin.refusals import is_for_model, refusal_text
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS, RUN_CODE, RUN_CODE_WITH_TOOLS
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient, WebClient
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.models import ToolSchema

__all__ = ["BuiltinCall", "BuiltinTools"]

_MAX_ERROR_CHARACTERS: Final = 1000

_Tool = Callable[[BuiltinCall, Mapping[str, Any]], Awaitable[str | WithImages | None]]


class BuiltinTools:
    """The tools that the orchestrator runs itself."""

    def __init__(
        self,
        blocks: BlocksClient,
        recall: RecallClient,
        episodes: EpisodesClient,
        archival: ArchivalClient,
        clock: Clock,
        messages: AgentMessages,
        web_port: WebClient,
        files: FileTools,
        tools: ToolsClient,
        optional: OptionalCalls,
    ) -> None:
        self._tools: Mapping[str, _Tool] = {
            "send_message": _send_message,
            "conversation_search": partial(search.conversation_search, recall, clock),
            "episodic_memory_search": partial(search.episodic_search, episodes, clock),
            "episodic_memory_correct": partial(search.episodic_correct, episodes),
            "episodic_memory_forget": partial(search.episodic_forget, episodes),
            "archival_memory_insert": partial(search.archival_insert, archival),
            "archival_memory_search": partial(search.archival_search, archival, clock),
            "core_memory_append": partial(core_memory.append, blocks),
            "core_memory_replace": partial(core_memory.replace_all, blocks),
            "memory_replace": partial(core_memory.replace, blocks),
            "memory_insert": partial(core_memory.insert, blocks),
            "memory_rethink": partial(core_memory.rethink, blocks),
            "rethink_memory": partial(core_memory.rethink_target, blocks),
            "memory_apply_patch": partial(core_memory.apply_patch, blocks),
            "memory_finish_edits": _finish_edits,
            "memory": partial(run_command, blocks),
            "search_memory": partial(voice.search_memory, recall, archival, clock),
            "store_memories": partial(voice.store_memories, archival),
            "rethink_user_memory": partial(voice.rethink_user_memory, blocks),
            "finish_rethinking_memory": _finish_edits,
            "send_message_to_agent_and_wait_for_reply": messages.ask,
            "send_message_to_agent_async": messages.send,
            "send_message_to_agents_matching_tags": messages.ask_by_tags,
            "send_message_to_all_agents_in_group": messages.ask_group,
            "web_search": partial(web.web_search, web_port, optional),
            "fetch_webpage": partial(web.fetch_webpage, web_port, optional),
            "open_files": files.open_files,
            "grep_files": files.grep_files,
            "semantic_search_files": files.semantic_search_files,
            RUN_CODE: partial(code.run_code, tools),
            RUN_CODE_WITH_TOOLS: code.outside_of_turn,
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(self._tools)

    def schema(self, name: str) -> ToolSchema:
        """Returns the schema of a tool, without the arguments that mnemesh adds."""
        return BUILTIN_SCHEMAS[name]

    async def execute(self, call: BuiltinCall) -> ToolResult:
        """Runs a tool. A repeat under the same effect prefix has no further effect.

        Arguments that do not match, and calls that a service refuses, are results with `ok` false and a text for the
        model.

        Raises:
            MnemeshError: a service could not be reached, exceeded its deadline or failed. The effect may have taken
                place. The same call may be repeated.
        """
        arguments = check(call.arguments, self.schema(call.name))
        if isinstance(arguments, ParseFailure):
            return _failed(call, "ARGUMENTS_INVALID", arguments.text)
        call = replace(call, arguments=arguments)
        try:
            output = await self._tools[call.name](call, arguments)
        except Refused as refused:
            return _failed(call, "REFUSED", str(refused))
        except MnemeshError as error:
            if not is_for_model(error):
                raise
            return _failed(call, error.reason, refusal_text(error, call))
        if isinstance(output, WithImages):
            return ToolResult(ok=True, text=output.text, images=output.images)
        return ToolResult(ok=True, text=output or "")


async def _send_message(_call: BuiltinCall, _arguments: Mapping[str, Any]) -> str:
    """Does nothing: the user reads the message in the arguments of the call."""
    return "Sent message successfully."


async def _finish_edits(_call: BuiltinCall, _arguments: Mapping[str, Any]) -> None:
    """Does nothing: tool rules end the turn after it."""


def _failed(call: BuiltinCall, reason: str, text: str) -> ToolResult:
    trace = f"Error executing function {call.name}: {reason}: {text}"
    return ToolResult(ok=False, text=text, stderr=(trace[:_MAX_ERROR_CHARACTERS],))
