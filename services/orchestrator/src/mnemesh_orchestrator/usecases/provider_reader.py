"""Reads the models that providers list."""

import asyncio
from dataclasses import replace
from typing import Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.sealing import SecretUnreadable

from mnemesh_orchestrator.llm.credentials import CredentialSealer
from mnemesh_orchestrator.llm.errors import ProviderError, ProviderTimeout
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.provider import make_client, read_models
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.providers import (
    ProviderRecord,
    ServedModel,
)

LOOK_SECONDS: Final = 5.0
"""The time for the lists of a provider. A caller who registers it waits 10 s by default."""


class ProviderReader:
    """Reads the models of providers, with clients that it opens and closes."""

    def __init__(self, models: ModelCatalog, sealer: CredentialSealer, clock: Clock) -> None:
        self._models = models
        self._sealer = sealer
        self._clock = clock

    async def model_names(self, settings: ProviderSettings) -> tuple[str, ...]:
        """Returns the names of the models. Raises ProviderError."""
        return tuple(model.name for model in await self._served(settings))

    async def _served(self, settings: ProviderSettings) -> tuple[ServedModel, ...]:
        client = make_client(settings, self._models.base.settings.limits)
        await asyncio.to_thread(client.prepare)  # Importing an SDK may take seconds.
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await read_models(client, settings)
        except TimeoutError:
            message = f"{settings.name} did not list its models at {settings.endpoint} within {LOOK_SECONDS:g} s."
            raise ProviderTimeout(message, provider=settings.name) from None
        finally:
            await client.close()

    async def read(self, record: ProviderRecord) -> ProviderRecord:
        """Returns the record with the models that its provider lists, or with the error of asking for them."""
        try:
            served = await self._served(self._sealer.open_settings(record))
        except (ProviderError, SecretUnreadable) as error:
            return replace(record, refresh_error=error.message)
        return replace(record, served=served, refreshed_at=self._clock.now(), refresh_error=None)
