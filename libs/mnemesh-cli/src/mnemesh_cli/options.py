"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from mnemesh_cli.completion import completer

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="Id or name of the agent.", autocompletion=completer("agent"))
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Id or description of the group.", autocompletion=completer("group"))
]
FolderArgument = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Id or name of the folder.", autocompletion=completer("folder"))
]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Id of the file, folder/name, or a name that only one file has.")
]
OptionalAgentArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="AGENT",
        help="Id or name of the agent.",
        show_default="the first agent",
        autocompletion=completer("agent"),
    ),
]
DataDirOption = Annotated[
    str | None,
    typer.Option(help="Data directory of the mesh. Overrides MNEMESH_DATA_DIR.", show_default="./data"),
]
OfAgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="Only those of this agent, by id or name.", autocompletion=completer("agent")),
]
AttachToOption = Annotated[
    list[str] | None,
    typer.Option("--agent", "-a", help="Attach it to this agent. Can be repeated.", autocompletion=completer("agent")),
]
ModelOption = Annotated[
    str | None, typer.Option(help="The model, as provider/model.", autocompletion=completer("model"))
]
LimitOption = Annotated[int, typer.Option(min=1, help="Maximum number of rows.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def text_or_stdin(text: str) -> str:
    """Returns the text of an argument; what stdin has, without its last line break, if the argument is "-"."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text
