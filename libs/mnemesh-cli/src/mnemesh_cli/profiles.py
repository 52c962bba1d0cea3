"""Profiles: named meshes in the configuration file of the command line."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import NotFound
from mnemesh_kit.private_files import make_new_files_private

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The address of a mesh, and the files of its credentials. Every field is optional."""

    target: str | None = None
    token_file: str | None = None
    auth_key_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_server_name: str | None = None

    @property
    def values(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Profiles:
    """The content of the configuration file."""

    current: str | None = None
    """The profile of commands without `--profile`."""
    named: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Returns a profile.

        Raises:
            NotFound: there is none with the name.
        """
        if name not in self.named:
            raise NotFound(f"There is no profile {name!r}. Create it with `mnemesh profiles set`.", resource_id=name)
        return self.named[name]

    def write(self) -> None:
        """Replaces the configuration file. Only its owner can read it."""
        path = config_file()
        lines = [f"profile = {json.dumps(self.current)}"] if self.current else []
        for name, profile in sorted(self.named.items()):
            lines += [
                "",
                f"[profiles.{name}]",
                *(f"{key} = {json.dumps(text)}" for key, text in profile.values.items()),
            ]
        make_new_files_private()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".toml.new")
        written.write_text("\n".join(lines).lstrip("\n") + "\n", encoding="utf-8")
        written.replace(path)


def config_file() -> Path:
    """Returns the path of the configuration file: $XDG_CONFIG_HOME/mnemesh/config.toml, by default below ~/.config.

    Raises:
        ConfigError: the user has no home directory.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "")
    if not base.is_absolute():
        try:
            base = Path.home() / ".config"
        except RuntimeError:
            raise ConfigError("This user has no home directory. Set XDG_CONFIG_HOME.") from None
    return base / "mnemesh" / "config.toml"


def read_profiles() -> Profiles:
    """Returns the profiles; none if there is no configuration file, or if it is in a folder of another user.

    Raises:
        ConfigError: the file cannot be read, or a value in it is wrong.
    """
    try:
        path = config_file()
    except ConfigError:
        return Profiles()
    if not os.access(path, os.F_OK):
        return Profiles()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error
    current, tables = content.get("profile"), content.get("profiles", {})
    if not isinstance(current, str | None) or not isinstance(tables, dict):
        raise ConfigError(f"{path}: `profile` must be a string and `profiles` a table.")
    return Profiles(current, {name: _profile(path, name, table) for name, table in tables.items()})


def require_name(name: str) -> str:
    """Returns the name of a profile.

    Raises:
        ConfigError: it has other characters than letters, digits, - and _.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"The name of a profile has letters, digits, - and _, not {name[:100]!r}.")
    return name


def _profile(path: Path, name: str, table: Any) -> Profile:
    known = {each.name for each in fields(Profile)}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: profiles.{name} must be a table.")
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: profiles.{name} has no setting {key!r}. Use {', '.join(sorted(known))}.")
        if not isinstance(value, str):
            raise ConfigError(f"{path}: profiles.{name}.{key} must be a string.")
    return Profile(**table)
