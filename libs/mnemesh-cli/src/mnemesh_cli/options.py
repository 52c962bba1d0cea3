"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from mnemesh_cli.supervisor.config import MeshConfig

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Id or name of the agent.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Id or description of the group.")]
FolderArgument = Annotated[str, typer.Argument(metavar="FOLDER", help="Id or name of the folder.")]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Id of the file, folder/name, or a name that only one file has.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
OptionalAgentArgument = Annotated[
    str | None, typer.Argument(metavar="AGENT", help="Id or name of the agent.", show_default="the first agent")
]
DataDirOption = Annotated[
    str | None,
    typer.Option(help="Data directory of the mesh. Overrides MNEMESH_DATA_DIR.", show_default="./data"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def mesh_config(data_dir: str | None) -> MeshConfig:
    """Returns the settings of the mesh on this machine.

    Args:
        data_dir: the value of `--data-dir`, or None to use MNEMESH_DATA_DIR.

    Raises:
        ConfigError: a variable has an invalid value.
    """
    return MeshConfig.from_env({**os.environ, **({"MNEMESH_DATA_DIR": data_dir} if data_dir else {})})
