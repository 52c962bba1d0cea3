"""The settings of the mesh on this machine."""

from __future__ import annotations

import os

from mnemesh_cli.supervisor.config import MeshConfig


def mesh_config(data_dir: str | None) -> MeshConfig:
    """Returns the settings of the mesh on this machine.

    Args:
        data_dir: the value of `--data-dir`, or None to use MNEMESH_DATA_DIR.

    Raises:
        ConfigError: a variable has an invalid value.
    """
    return MeshConfig.from_env({**os.environ, **({"MNEMESH_DATA_DIR": data_dir} if data_dir else {})})
