"""OpenAI chat completions, and every server that implements them."""

from mnemesh_orchestrator.llm.openai_chat.client import OpenAiChatClient
from mnemesh_orchestrator.llm.openai_chat.render import render_body

__all__ = ["OpenAiChatClient", "render_body"]
