"""The names of fields in errors of the mesh, as the client knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from mnemesh_kit.errors import InvalidArgument

from mnemesh_gateway.errors import InvalidRequest
from mnemesh_gateway.model.sending import Input, RunOptions

_MESSAGE: Final = re.compile(r"messages\[(\d+)\](?:\.(\w+).*)?")
_TOOL: Final = re.compile(r"config\.client_tools\[(\d+)\](.*)")
_RENAMED: Final = {
    "config.client_tools": "tools",
    "config.response_format": "response_format",
    "config.model_settings.max_output_tokens": "max_tokens",
    "config.model_settings": "",
    "config.metadata": "metadata",
}


def renamed(error: InvalidArgument, inputs: Sequence[Input], options: RunOptions) -> InvalidArgument:
    """Returns an error of the mesh with the name of the field in the client's request.

    Args:
        error: The error.
        inputs: The messages that were sent.
        options: The options that were sent.
    """
    field = error.field
    name = None if field is None else _name(field, inputs, options)
    if field is None or name is None:
        return error
    return InvalidRequest(error.message.replace(field, name), name)


def _name(field: str, inputs: Sequence[Input], options: RunOptions) -> str | None:
    if message := _MESSAGE.fullmatch(field):
        index = int(message[1])
        path = inputs[index].path if index < len(inputs) else ""
        return f"{path}.{message[2]}" if path and message[2] else path or None
    if tool := _TOOL.fullmatch(field):
        index = int(tool[1])
        return options.tools[index].path + tool[2] if index < len(options.tools) else "tools"
    for prefix, name in _RENAMED.items():
        if field == prefix or field.startswith((f"{prefix}.", f"{prefix}[")):
            return (name + field.removeprefix(prefix)).removeprefix(".")
    return None
