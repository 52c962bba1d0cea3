"""The methods of the installed SDK, found by introspection."""

import inspect
from collections.abc import Iterator
from typing import Any, Final

from letta_client import Letta
from letta_client._resource import SyncAPIResource

_VIEWS: Final = frozenset({"with_raw_response", "with_streaming_response"})

_ALTERNATIVES: Final = {"templates.create": {"agent_id": "agent-123e4567-e89b-42d3-8456-426614174000", "type": "agent"}}
"""Arguments of methods that take one of several sets."""


def sdk_methods(client: Letta) -> dict[str, Any]:
    """Returns the public methods of every resource by their paths, such as `agents.messages.create`."""
    return {"health": client.health, **dict(_methods(client, ""))}


def _methods(owner: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in dir(type(owner)):
        if name.startswith("_") or name in _VIEWS:
            continue
        if isinstance(getattr(type(owner), name), property | type(Letta.agents)):
            value = getattr(owner, name)
            if isinstance(value, SyncAPIResource):
                yield from _methods(value, f"{path}{name}.")
        elif path and inspect.isfunction(getattr(type(owner), name)):
            yield f"{path}{name}", getattr(owner, name)


def arguments(path: str, method: Any) -> dict[str, Any]:
    """Returns values for the required parameters of a method: ids for ids, texts for the rest."""
    return _ALTERNATIVES.get(path) or {
        name: _value(name)
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _value(name: str) -> Any:
    prefixes = {"folder": "source", "memory": "passage", "path_run": "run", "conversation": "conv"}
    if name.endswith("_id"):
        kind = name.removesuffix("_id")
        return f"{prefixes.get(kind, kind)}-123e4567-e89b-42d3-8456-426614174000"
    special: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "file": b"x"}
    return special.get(name, "x")
