"""Anthropic's messages API."""

from engram_orchestrator.llm.anthropic_messages.client import AnthropicMessagesClient
from engram_orchestrator.llm.anthropic_messages.render import render_body

__all__ = ["AnthropicMessagesClient", "render_body"]
