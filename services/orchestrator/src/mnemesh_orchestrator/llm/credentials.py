"""Credentials of registered providers: sealed when they arrive, opened when a client is created."""

from dataclasses import replace

from mnemesh_kit.sealing import SecretBox

from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.providers import Credentials, ProviderDraft, ProviderRecord, SealedCredentials


class CredentialSealer:
    """Seals each credential for the one provider that it belongs to."""

    def __init__(self, box: SecretBox) -> None:
        self._box = box

    def seal(self, record: ProviderRecord, changes: Credentials) -> SealedCredentials:
        """Returns the credentials of the record after a change. No stored credential is opened.

        A key that is None is kept, an empty one is deleted. If headers are given, they replace all stored ones; a
        header without a value keeps its stored value, or is left out if there is none.

        Raises:
            SecretsKeyMissing: this server cannot store secrets.
        """
        stored = record.credentials
        headers = stored.headers
        if changes.headers:
            stored_values = {name.lower(): value for name, value in stored.headers}
            sealed = [
                (
                    name,
                    stored_values.get(name.lower())
                    if value is None
                    else self._box.seal(value, _header_context(record, name)),
                )
                for name, value in changes.headers
            ]
            headers = tuple((name, value) for name, value in sealed if value is not None)
        return SealedCredentials(
            self._seal_one(record, "api_key", stored.api_key, changes.api_key),
            self._seal_one(record, "access_key", stored.access_key, changes.access_key),
            headers,
        )

    def resealed(self, record: ProviderRecord) -> SealedCredentials:
        """Returns the credentials of a record, encrypted with the first key. Raises SecretUnreadable."""

        def one(name: str, sealed: bytes | None) -> bytes | None:
            return None if sealed is None else self._box.resealed(sealed, _context(record, name))

        stored = record.credentials
        headers = tuple(
            (name, self._box.resealed(value, _header_context(record, name))) for name, value in stored.headers
        )
        return SealedCredentials(one("api_key", stored.api_key), one("access_key", stored.access_key), headers)

    def open_settings(self, record: ProviderRecord) -> ProviderSettings:
        """Returns the settings of a registered provider with its credentials.

        Raises:
            SecretUnreadable: they were sealed with a key that this server does not have.
        """
        sealed = record.credentials
        api_key = None if sealed.api_key is None else self._box.open(sealed.api_key, _context(record, "api_key"))
        headers = {name: self._box.open(value, _header_context(record, name)) for name, value in sealed.headers}
        return replace(bare_settings(record.draft), api_key=api_key, headers=headers)

    def fingerprint(self, secret: str) -> str:
        """Returns a fingerprint that identifies the secret and reveals nothing about it.

        Raises the errors of `seal`.
        """
        return self._box.fingerprint(secret)

    def _seal_one(self, record: ProviderRecord, name: str, stored: bytes | None, secret: str | None) -> bytes | None:
        if secret is None:
            return stored
        return self._box.seal(secret, _context(record, name)) if secret else None


def bare_settings(draft: ProviderDraft) -> ProviderSettings:
    """Returns the settings of a provider without credentials."""
    return ProviderSettings(
        name=draft.name,
        type=draft.type,
        api=None if draft.api is None else Api(draft.api),
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        is_registered=True,
    )


def with_credentials(settings: ProviderSettings, credentials: Credentials) -> ProviderSettings:
    """Returns the settings with other credentials, to try them. Those that are not given stay."""
    stored = {name.lower(): value for name, value in settings.headers.items()}
    headers = {
        name: value if value is not None else stored.get(name.lower(), "") for name, value in credentials.headers
    }
    return replace(
        settings,
        api_key=settings.api_key if credentials.api_key is None else (credentials.api_key or None),
        headers=headers or settings.headers,
    )


def _context(record: ProviderRecord, name: str) -> str:
    return f"{record.organization_id}/{record.id}/{name}"


def _header_context(record: ProviderRecord, name: str) -> str:
    return _context(record, f"header/{name.lower()}")
