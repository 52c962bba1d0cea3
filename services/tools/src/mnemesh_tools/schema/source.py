"""Generates function schemas from the signatures and Google docstrings of Python source, through the syntax tree."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass
from typing import Any, Final

import docstring_parser

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema.annotations import UnsupportedAnnotation, is_optional, schema_of

MAX_NAME_CHARS: Final = 48
MAX_SOURCE_CHARS: Final = 250_000
RESERVED: Final = frozenset({"self", "agent_state", "client"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """The description of a function that models receive."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object, with properties in the order of the signature."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the schema in the form that model providers accept."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


def check_name(name: str, field: str) -> None:
    """Checks that `name` can be the name of a tool: an ASCII identifier of at most 48 characters.

    Raises:
        ToolSourceInvalid: It cannot.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ToolSourceInvalid(f"The tool's name '{name[:100]}' is not an identifier.", field=field)
    if len(name) > MAX_NAME_CHARS:
        raise ToolSourceInvalid(
            f"The tool's name '{name[:100]}' is longer than {MAX_NAME_CHARS} characters.", field=field
        )


def function_name(source: str, field: str, name: str | None = None) -> str:
    """Returns the name of the function that `from_source` describes.

    Raises:
        ToolSourceInvalid: The source is not valid Python or has no such function.
    """
    return _function(source, field, name).name


def from_source(source: str, field: str, *, name: str | None = None) -> FunctionSchema:
    """Returns the schema of the last function of `source`, or of the function `name`.

    Args:
        source: Python source. It is parsed and never executed.
        field: The request's field, for errors.
        name: A function at the top level of the source.

    Raises:
        ToolSourceInvalid: The source yields no schema. The metadata names the parameter that causes it, if any.
    """
    function = _function(source, field, name)
    check_name(function.name, field)
    text = ast.get_docstring(function)
    if text is None or not text.strip():
        raise ToolSourceInvalid(f"Function '{function.name}' has no docstring.", field=field)
    docstring = docstring_parser.parse(text, style=docstring_parser.DocstringStyle.GOOGLE)
    described = {item.arg_name.lstrip("*"): (item.description or "").strip() for item in docstring.params}
    parts = [part.strip() for part in (docstring.short_description, docstring.long_description) if part]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, has_default in _parameters(function, field):
        properties[parameter.arg] = _property(function, parameter, described.get(parameter.arg), field)
        if not has_default and not is_optional(parameter.annotation):
            required.append(parameter.arg)
    parameters = {"type": "object", "properties": properties, "required": required}
    return FunctionSchema(function.name, "\n\n".join(parts), parameters)


def _function(source: str, field: str, name: str | None) -> _Function:
    if len(source) > MAX_SOURCE_CHARS:
        raise ToolSourceInvalid(f"The source must be at most {MAX_SOURCE_CHARS:,} characters.", field=field)
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        line = f" in line {error.lineno}" if error.lineno else ""
        raise ToolSourceInvalid(f"The source is not valid Python: {error.msg}{line}.", field=field) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ToolSourceInvalid("The source is not valid Python: it cannot be parsed.", field=field) from error
    functions = [node for node in module.body if isinstance(node, _Function)]
    if name is not None:
        functions = [function for function in functions if function.name == name]
    if not functions:
        missing = "function" if name is None else f"function '{name[:100]}'"
        raise ToolSourceInvalid(f"The source has no {missing} at its top level.", field=field)
    return functions[-1]


def _parameters(function: _Function, field: str) -> list[tuple[ast.arg, bool]]:
    """Returns the parameters that the model sets, each with whether it has a default."""
    arguments = function.args
    for kind, refused in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if refused is not None:
            raise _invalid_parameter(
                function, refused.arg, f"is '{kind}{refused.arg}': a tool must declare each of its parameters", field
            )
    for refused in arguments.posonlyargs:
        raise _invalid_parameter(
            function, refused.arg, "is positional-only: tools are called with keyword arguments", field
        )
    first_default = len(arguments.args) - len(arguments.defaults)
    found = [(parameter, index >= first_default) for index, parameter in enumerate(arguments.args)]
    found += [
        (parameter, default is not None)
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [(parameter, has_default) for parameter, has_default in found if parameter.arg not in RESERVED]


def _property(function: _Function, parameter: ast.arg, description: str | None, field: str) -> dict[str, Any]:
    if not description:
        raise ToolSourceInvalid(
            f"Parameter '{parameter.arg}' in function '{function.name}' lacks a description in the docstring",
            field=field,
            parameter=parameter.arg,
        )
    try:
        return {**schema_of(parameter.annotation), "description": description}
    except UnsupportedAnnotation as error:
        raise _invalid_parameter(function, parameter.arg, f"has an unsupported annotation: {error}", field) from error


def _invalid_parameter(function: _Function, parameter: str, problem: str, field: str) -> ToolSourceInvalid:
    return ToolSourceInvalid(
        f"Parameter '{parameter}' in function '{function.name}' {problem}.", field=field, parameter=parameter
    )
