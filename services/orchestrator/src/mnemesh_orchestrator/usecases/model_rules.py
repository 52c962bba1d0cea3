"""The models that agents, conversations and runs name: some provider serves each, and its figures allow the settings.

A model is served if its provider is configured. The list of models of a provider can change, so it is not checked here:
a turn reports a model that its provider does not have.
"""

from mnemesh_types.agents import CompactionSettings, ModelSettings

from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.llm.model_catalog import OrganizationModels
from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import ModelInfo, require_settings_of


def require_served(models: OrganizationModels, handle: str, field: str) -> ModelInfo:
    """Returns a model. Raises ModelUnknown if no provider serves it. Metadata: field."""
    try:
        return models.resolve(handle)[0]
    except ModelUnknown as error:
        raise ModelUnknown(f"{field}: {error.message}", model=handle, field=field) from error


def require_usable_settings(
    models: OrganizationModels, model: ModelInfo | None, settings: ModelSettings | None, field: str
) -> None:
    """Refuses settings that a model does not allow, or whose fallback model no provider serves. None is not checked.

    Raises:
        InvalidArgument: A figure is above that of the model. Metadata: field.
        ModelUnknown: No provider serves the fallback model. Metadata: field.
    """
    if settings is None:
        return
    if settings.fallback_model:
        require_served(models, settings.fallback_model, f"{field}.fallback_model")
    if model is not None:
        require_settings_of(model, settings, field)


def require_usable_summaries(
    models: OrganizationModels, settings: CompactionSettings | MemoryExtractionSettings | None, field: str
) -> None:
    """As `require_usable_settings`, for the settings of summaries or of extracted facts, and the model that they name.

    Raises:
        InvalidArgument: A figure is above that of the model. Metadata: field.
        ModelUnknown: No provider serves a model. Metadata: field.
    """
    if settings is not None:
        model = None if settings.model is None else require_served(models, settings.model, f"{field}.model")
        require_usable_settings(models, model, settings.model_settings, f"{field}.model_settings")
