"""Generates function schemas from the signatures and Google docstrings of Python source, through the syntax tree."""

import ast
import keyword
import re
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_kit.unicode import well_formed

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema.annotations import AnnotationReader
from mnemesh_tools.schema.declarations import UNPARSABLE, UnsupportedAnnotation, read_declarations

MAX_NAME_CHARS: Final = 48
MAX_SOURCE_CHARS: Final = 250_000
MAX_PARAMETERS: Final = 100
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


def is_name(name: str) -> bool:
    """Returns whether a text is an ASCII identifier and no keyword of Python."""
    return _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def check_name(name: str, field: str) -> None:
    """Checks that `name` can be the name of a tool: an ASCII identifier of at most 48 characters.

    Raises:
        ToolSourceInvalid: It cannot.
    """
    if not is_name(name):
        raise ToolSourceInvalid(f"The tool's name '{name[:100]}' is not an identifier.", field=field)
    if len(name) > MAX_NAME_CHARS:
        raise ToolSourceInvalid(
            f"The tool's name '{name[:100]}' is longer than {MAX_NAME_CHARS} characters.", field=field
        )


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The facts about a function in the syntax tree of a source."""

    name: str
    description: str
    """The description in the docstring; empty if there is none."""
    takes_agent: bool
    """The function has the parameter `agent_state`."""
    schema: FunctionSchema | None
    problem: str = ""
    """Why there is no schema."""
    parameter: str | None = None
    """The parameter that causes the problem."""
    model: str | None = None
    """The first pydantic model that a parameter uses."""
    parameters: tuple[str, ...] = ()
    """The parameters of a function in TypeScript, in their order."""
    takes_object: bool = False
    """The function in TypeScript has one parameter, which is the object of all arguments."""

    def require_schema(self, field: str) -> FunctionSchema:
        """Returns the schema.

        Args:
            field: The request's field, for errors.

        Raises:
            ToolSourceInvalid: There is none. The metadata names the parameter that causes it, if any.
        """
        if self.schema is None:
            cause = {} if self.parameter is None else {"parameter": self.parameter}
            raise ToolSourceInvalid(self.problem, field=field, **cause)
        return self.schema


def from_source(source: str, field: str, *, name: str | None = None) -> FunctionSchema:
    """Returns the schema of the last function of `source`, or of the function `name`.

    Args:
        source: Python source. It is parsed and never executed.
        field: The request's field, for errors.
        name: A function at the top level of the source.

    Raises:
        ToolSourceInvalid: The source yields no schema. The metadata names the parameter that causes it, if any.
    """
    return read_source(source, field, name=name).require_schema(field)


def read_source(source: str, field: str, *, name: str | None = None) -> SourceFacts:
    """Returns the facts about the last function of `source`, or about the function `name`.

    Raises:
        ToolSourceInvalid: The source is not valid Python, or has no such function with a name that a tool can have.
    """
    module, function = _parse(source, field, name)
    check_name(function.name, field)
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    takes_agent = any(parameter.arg == "agent_state" for parameter in parameters)
    try:
        docstring = _docstring(function)
    except _NoSchema as error:
        return SourceFacts(function.name, "", takes_agent, None, error.problem)
    try:
        reader = AnnotationReader(read_declarations(module))
        schema = FunctionSchema(function.name, docstring.text, _parameters_schema(reader, function, docstring))
    except _NoSchema as error:
        return SourceFacts(function.name, docstring.text, takes_agent, None, error.problem, error.parameter)
    return SourceFacts(function.name, docstring.text, takes_agent, schema, model=reader.model)


class _NoSchema(Exception):
    """The function yields no schema. `parameter` is the cause, if it is one."""

    def __init__(self, problem: str, parameter: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class _Docstring:
    text: str
    """The short and the long description."""
    parameters: dict[str, str]
    """The descriptions of the parameters."""


def _parse(source: str, field: str, name: str | None) -> tuple[ast.Module, _Function]:
    if len(source) > MAX_SOURCE_CHARS:
        raise ToolSourceInvalid(f"The source must be at most {MAX_SOURCE_CHARS:,} characters.", field=field)
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        line = f" in line {error.lineno}" if error.lineno else ""
        raise ToolSourceInvalid(f"The source is not valid Python: {error.msg}{line}.", field=field) from error
    except UNPARSABLE as error:
        raise ToolSourceInvalid("The source is not valid Python: it cannot be parsed.", field=field) from error
    functions = [node for node in module.body if isinstance(node, _Function)]
    if name is not None:
        functions = [function for function in functions if function.name == name]
    if not functions:
        missing = "function" if name is None else f"function '{name[:100]}'"
        raise ToolSourceInvalid(f"The source has no {missing} at its top level.", field=field)
    return module, functions[-1]


_OTHER_STYLES: Final = (
    (re.compile(r"^[ \t]*:param[ \t]", re.MULTILINE), "REST"),
    (re.compile(r"^[ \t]*Parameters[ \t]*\n[ \t]*---", re.MULTILINE), "NUMPYDOC"),
)
"""How the docstrings that are not in Google's style are recognised."""


def _docstring(function: _Function) -> _Docstring:
    text = ast.get_docstring(function)
    if text is None or not text.strip():
        raise _NoSchema(f"Function '{function.name}' has no docstring.")
    if well_formed(text) != text:
        raise _NoSchema(
            f"The docstring of function '{function.name}' contains a NUL character or half of a character "
            "(a lone surrogate)."
        )
    import docstring_parser  # noqa: PLC0415  (it is loaded with the first source)

    style = next((style for mark, style in _OTHER_STYLES if mark.search(text)), "GOOGLE")
    try:
        parsed = docstring_parser.parse(text, style=docstring_parser.DocstringStyle[style])
    except docstring_parser.ParseError as error:
        raise _NoSchema(
            f"The docstring of function '{function.name}' cannot be read: one of its sections is empty or repeated."
        ) from error
    described = {item.arg_name.lstrip("*"): (item.description or "").strip() for item in parsed.params}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    return _Docstring("\n\n".join(parts), described)


def _parameters_schema(reader: AnnotationReader, function: _Function, docstring: _Docstring) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, has_default in _parameters(function):
        properties[parameter.arg] = _property(reader, function, parameter, docstring)
        if not has_default and not reader.is_optional(parameter.annotation):
            required.append(parameter.arg)
    return {"type": "object", "properties": properties, "required": required}


def _parameters(function: _Function) -> list[tuple[ast.arg, bool]]:
    """Returns the parameters that the model sets, each with whether it has a default."""
    arguments = function.args
    for kind, refused in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if refused is not None:
            raise _invalid_parameter(
                function, refused.arg, f"is '{kind}{refused.arg}': a tool must declare each of its parameters"
            )
    for refused in arguments.posonlyargs:
        raise _invalid_parameter(function, refused.arg, "is positional-only: tools are called with keyword arguments")
    first_default = len(arguments.args) - len(arguments.defaults)
    found = [(parameter, index >= first_default) for index, parameter in enumerate(arguments.args)]
    found += [
        (parameter, default is not None)
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if len(found) > MAX_PARAMETERS:
        raise _NoSchema(f"Function '{function.name}' has more than {MAX_PARAMETERS} parameters.")
    return [(parameter, has_default) for parameter, has_default in found if parameter.arg not in RESERVED]


def _property(
    reader: AnnotationReader, function: _Function, parameter: ast.arg, docstring: _Docstring
) -> dict[str, Any]:
    try:
        schema = reader.parameter(parameter.annotation)
        description = docstring.parameters.get(parameter.arg) or reader.description(parameter.annotation)
    except UnsupportedAnnotation as error:
        raise _invalid_parameter(function, parameter.arg, f"has an unsupported annotation: {error}") from error
    if not description:
        raise _NoSchema(
            f"Parameter '{parameter.arg}' in function '{function.name}' lacks a description in the docstring",
            parameter.arg,
        )
    if well_formed(description) != description:
        raise _invalid_parameter(function, parameter.arg, "has a description that is not text")
    return {**schema, "description": description}


def _invalid_parameter(function: _Function, parameter: str, problem: str) -> _NoSchema:
    return _NoSchema(f"Parameter '{parameter}' in function '{function.name}' {problem}.", parameter)
