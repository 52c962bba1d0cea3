"""The connection of the command line to a mesh, and the choice of an agent."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mnemesh_cli.supervisor.config import MeshConfig, lock_holder, mesh_config
from mnemesh_kit.config import ConfigError, TlsSettings

if TYPE_CHECKING:
    # A command that calls nothing, such as `mnemesh up`, does not import the client.
    from mnemesh_cli.profiles import Profile
    from mnemesh_client.addresses import Addresses
    from mnemesh_client.agent import Agent
    from mnemesh_client.mnemesh import Mnemesh

FIRST_AGENT_TAG: Final = "first-agent"
_NAMED: Final = 5
NO_AGENTS: Final = "There are no agents. Create one with `mnemesh agents create`."


@dataclass(slots=True)
class Connection:
    """The options of the line that name a mesh and its credentials. Every command finds it as `context.obj`.

    Each value comes from the first of these that has it: the option, the profile of `--profile` or MNEMESH_PROFILE, the
    environment, the current profile. The address of the current profile counts only if no mesh is named otherwise.
    """

    target: str | None = None
    profile_name: str | None = None

    @property
    def profile(self) -> "Profile":
        """The profile of `--profile`, of MNEMESH_PROFILE, or the current one; an empty one without any.

        Raises:
            NotFound: there is no such profile.
            ConfigError: the configuration file is wrong.
        """
        from mnemesh_cli.profiles import Profile, read_profiles  # noqa: PLC0415

        profiles = read_profiles()
        name = self._named_profile or ("" if self.target or os.environ.get("MNEMESH_TARGET") else profiles.current)
        return profiles.get(name) if name else Profile()

    def addresses(self, config: MeshConfig | None = None) -> "Addresses":
        """Returns the addresses of the mesh: see `Addresses.resolve`.

        A mesh that runs on the data directory (of `config`, or of the environment) is known by its lock file.
        """
        from mnemesh_client.addresses import Addresses  # noqa: PLC0415

        holder = lock_holder((config or mesh_config(None)).data_path)
        target = self.target or self.profile.target
        return Addresses.resolve(target, running=holder.addresses if holder is not None else None)

    def open(self, addresses: "Addresses | None" = None, *, deadline: float | None = None) -> "Mnemesh":
        """Returns a client of the mesh at `addresses`. `deadline`: that of its calls, in seconds."""
        from mnemesh_client.mnemesh import Mnemesh  # noqa: PLC0415
        from mnemesh_kit.outgoing import DEADLINE_SECONDS  # noqa: PLC0415

        token, key_file = self.credentials()
        return Mnemesh(
            addresses or self.addresses(),
            token=token,
            auth_key_file=key_file,
            tls=self.tls(),
            deadline=deadline or DEADLINE_SECONDS,
        )

    def credentials(self) -> tuple[str | None, str | None]:
        """Returns the bearer token, or else the key file to sign tokens with.

        Raises:
            ConfigError: the token file of the profile cannot be read.
        """
        profile = self.profile
        found = (_token(profile.token_file), profile.auth_key_file)
        environment = (os.environ.get("MNEMESH_TOKEN") or None, os.environ.get("MNEMESH_AUTH_KEY_FILE") or None)
        first, second = (found, environment) if self._named_profile else (environment, found)
        token, key_file = first if any(first) else second
        return token, None if token else key_file

    def tls(self) -> TlsSettings:
        """Returns the files for encrypted connections: those of the profile, or of the environment."""
        profile, environment = self.profile, TlsSettings.from_env()
        settings = TlsSettings(
            ca_file=profile.tls_ca_file,
            cert_file=profile.tls_cert_file,
            key_file=profile.tls_key_file,
            server_name=profile.tls_server_name,
        )
        if settings == TlsSettings() or (environment != TlsSettings() and not self._named_profile):
            return environment
        return settings

    @property
    def _named_profile(self) -> str | None:
        return self.profile_name or os.environ.get("MNEMESH_PROFILE") or None


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The token file of the profile, {path}, cannot be read.") from error


async def require_free_name(mnemesh: "Mnemesh", name: str) -> None:
    """Checks that no agent has a name, because commands by a name that several have fail.

    The server allows equal names, as clients of Letta's API expect. The rule is that of the command line.

    Raises:
        AlreadyExists: an agent has the name. The message has its id.
    """
    from mnemesh_kit.errors import AlreadyExists  # noqa: PLC0415

    async for agent in mnemesh.agents.list(name=name, order="asc", limit=1):
        raise AlreadyExists(
            f"An agent is named {name!r} already: {agent.id}. Choose another name, or use --force.", name=name
        )


async def with_free_name(mnemesh: "Mnemesh", agent: "Agent") -> "Agent":
    """Returns an agent that was created just now, with " (2)" after its name if another has the name, or a free number.

    The time of creation does not tell which one is new: an imported agent keeps that of its original.
    """
    named = [each.id async for each in mnemesh.agents.list(name=agent.name, limit=2)]
    if all(each == agent.id for each in named):
        return agent
    number = 2
    while [each async for each in mnemesh.agents.list(name=f"{agent.name} ({number})", limit=1)]:
        number += 1
    await agent.update(name=f"{agent.name} ({number})")
    return agent


async def find_first_agent(mnemesh: "Mnemesh") -> "Agent | None":
    """Returns the agent that `mnemesh up --chat` created, or None if there is none."""
    async for agent in mnemesh.agents.list(tags_all=[FIRST_AGENT_TAG], order="asc", limit=1):
        return agent
    return None


async def choose_agent(mnemesh: "Mnemesh", key: str | None) -> "Agent":
    """Returns the agent with an id or name; without a key, the first agent or the only one.

    Raises:
        NotFound: there is no such agent.
        InvalidArgument: several agents match.
    """
    from mnemesh_kit.errors import InvalidArgument, NotFound  # noqa: PLC0415

    if key is not None:
        return await mnemesh.agents.find(key)
    first = await find_first_agent(mnemesh)
    if first is not None:
        return first
    agents = [agent async for agent in mnemesh.agents.list(limit=_NAMED + 1)]
    if not agents:
        raise NotFound(NO_AGENTS)
    if len(agents) > 1:
        names = ", ".join([agent.name for agent in agents[:_NAMED]] + ["…"] * (len(agents) > _NAMED))
        raise InvalidArgument(f"There are several agents: {names}. Name one by its id or name.", field="agent")
    return agents[0]
