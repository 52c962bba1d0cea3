"""JSON schemas of structured answers: their compiled validators, and the check that one is usable."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_MAX_PROBLEM: Final = 300


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Returns why a schema cannot be used, or None."""
    try:
        validator(json.dumps(schema))
    except ValueError as error:
        return first_line(error)
    return None


@lru_cache(maxsize=64)
def validator(schema: str) -> "Validator":
    """Returns the validator of a schema. Raises ValueError if the schema cannot be used."""
    # Deferred: only structured answers need the library.
    import jsonschema_rs  # noqa: PLC0415

    return jsonschema_rs.validator_for(json.loads(schema), retriever=_refuse_reference)


def first_line(problem: object) -> str:
    """Returns the first line of a problem, shortened to 300 characters."""
    line = str(problem).partition("\n")[0]
    return line if len(line) <= _MAX_PROBLEM else f"{line[:_MAX_PROBLEM]}…"


def _refuse_reference(uri: str) -> Any:
    # A schema must be complete: the server fetches nothing for it.
    raise ValueError(f"it refers to {uri}")
