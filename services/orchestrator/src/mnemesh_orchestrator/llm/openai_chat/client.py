"""Calls OpenAI, or a server with its chat completions."""

from typing import Any

from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.history_forms import HistoryForm
from mnemesh_orchestrator.llm.openai_chat.answer import ChatAnswer
from mnemesh_orchestrator.llm.openai_chat.render import render_body
from mnemesh_orchestrator.llm.openai_client import OpenAiClient
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.render_cache import RenderCache


class OpenAiChatClient(OpenAiClient):
    """A client of chat completions."""

    api_path = "/chat/completions"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _answer(self, provider: str) -> StreamedAnswer:
        return ChatAnswer(provider)
