"""Calls of services in memory outside of a coroutine."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, as_principal

T = TypeVar("T")


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Runs a call of a service in memory to its end, which never waits for anything outside of this function."""
    with as_principal(DEFAULT_PRINCIPAL):
        try:
            while True:
                call.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
