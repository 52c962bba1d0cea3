"""The client of `mnemesh up`: it reports the providers and the default model, and runs the chat with the first agent.

`python -m mnemesh_cli.commands.model_report` prints the lines. `mnemesh up` runs it, so that it needs no client itself.
"""

import asyncio
import os
import sys
import time
from typing import Final

from mnemesh_cli.commands.chat import converse
from mnemesh_cli.commands.doctor import check_providers, how_to_change
from mnemesh_cli.commands.first_agent import ensure_first_agent
from mnemesh_cli.display.error_text import any_error_text, error_text
from mnemesh_cli.display.terminal import MODEL_LINE, notice, print_error
from mnemesh_cli.supervisor.config import MeshConfig, mesh_config
from mnemesh_client.addresses import Addresses
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.outgoing import DEADLINE_SECONDS
from mnemesh_kit.services import SERVICE_NAMES

_PATIENT_SECONDS: Final = 300.0
"""The deadline of calls that a slow server of models or a busy machine delays."""
_MODEL_RETRY_SECONDS: Final = 5.0


async def chat_with_first_agent(config: MeshConfig) -> int:
    """Chats with the first agent, which is created if there is none. Returns the exit code of the chat.

    Raises:
        StartupError: no provider serves a model for new agents.
    """
    finding = asyncio.create_task(_default_model(config))
    describing = asyncio.create_task(_describe(config, finding))
    try:
        model = await finding
        async with _client(config, _PATIENT_SECONDS) as mnemesh:
            override = bool(os.environ.get("MNEMESH_MODEL"))
            agent, line = await ensure_first_agent(mnemesh, model, config.data_path, override=override)
        notice(line)
        async with _client(config) as mnemesh:
            return await converse(mnemesh, await mnemesh.agents.get(agent.id))
    finally:
        for task in (describing, finding):
            task.cancel()
        await asyncio.gather(describing, finding, return_exceptions=True)


def _client(config: MeshConfig, deadline: float = DEADLINE_SECONDS) -> Mnemesh:
    addresses = Addresses(**{name: config.address(name) for name in SERVICE_NAMES})
    return Mnemesh(addresses, auth_key_file=config.auth_key_file, tls=config.tls, deadline=deadline)


async def _default_model(config: MeshConfig) -> str:
    """Returns the model of new agents.

    Raises:
        StartupError: there is none, for example because no provider serves that of MNEMESH_MODEL.
    """
    async with _client(config, _PATIENT_SECONDS) as mnemesh:
        ends_at, is_shown = time.monotonic() + _PATIENT_SECONDS, False
        while True:
            try:
                return (await mnemesh.models.default()).handle
            except MnemeshError as error:
                setting = "MNEMESH_MODEL cannot be used. " if isinstance(error, NotFound) else ""
                text = f"{MODEL_LINE}of new agents is unknown: {setting}{error_text(error)}"
                if error.reason != "PROVIDER_UNAVAILABLE" or time.monotonic() > ends_at:
                    raise StartupError(text) from error
            if not is_shown:
                print_error(text)
                is_shown = True
            await asyncio.sleep(_MODEL_RETRY_SECONDS)


async def _describe(config: MeshConfig, model: asyncio.Task[str]) -> None:
    """Prints what is wrong with providers, then the model of new agents.

    The servers of models may be slow or away. The mesh is ready without them.
    """
    async with _client(config, _PATIENT_SECONDS) as mnemesh:
        for finding in await check_providers(mnemesh):
            if finding.is_problem:
                print_error(f"{finding.subject}: {finding.text}")
    try:
        handle = await model
        notice(f"{MODEL_LINE}{handle} ({how_to_change(handle)})")
    except StartupError as error:
        print_error(str(error))


async def describe_models(config: MeshConfig) -> None:
    """Prints what is wrong with providers, then the model of new agents, or why there is none."""
    finding = asyncio.create_task(_default_model(config))
    await _describe(config, finding)


def main() -> int:
    """Prints the lines about the mesh on this machine. Returns the exit code of the process."""
    try:
        asyncio.run(describe_models(mesh_config(None)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0
    except Exception as error:
        print_error(any_error_text(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
