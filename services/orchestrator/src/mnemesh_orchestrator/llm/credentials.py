"""The credentials of registered providers: sealed as they come in, opened where a client is made."""

from dataclasses import replace

from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.providers import Credentials, ProviderDraft, ProviderRecord, SealedCredentials
from mnemesh_orchestrator.sealing import SecretBox


class CredentialSafe:
    """Seals each credential for the one provider that it belongs to."""

    def __init__(self, box: SecretBox) -> None:
        self._box = box

    def sealed(self, record: ProviderRecord, given: Credentials) -> SealedCredentials:
        """What the record's credentials are once these were given; none of the stored ones is opened for it.

        A key that is None stays, an empty one is deleted. Headers, where there are any, replace all; one without a
        value keeps the one stored, or is left out where there is none.

        Raises:
            SecretsKeyMissing: nothing can be stored here.
        """
        before = record.credentials
        headers = before.headers
        if given.headers:
            stored = {name.lower(): value for name, value in before.headers}
            kept = [
                (name, stored.get(name.lower()) if value is None else self._box.seal(value, _header(record, name)))
                for name, value in given.headers
            ]
            headers = tuple((name, value) for name, value in kept if value is not None)
        return SealedCredentials(
            self._one(record, "api_key", before.api_key, given.api_key),
            self._one(record, "access_key", before.access_key, given.access_key),
            headers,
        )

    def settings(self, record: ProviderRecord) -> ProviderSettings:
        """A registered provider with its credentials, ready to be asked.

        Raises:
            SecretUnreadable: they were sealed with a key that is not here.
        """
        sealed = record.credentials
        api_key = None if sealed.api_key is None else self._box.open(sealed.api_key, _place(record, "api_key"))
        headers = {name: self._box.open(value, _header(record, name)) for name, value in sealed.headers}
        return replace(bare_settings(record.draft), api_key=api_key, headers=headers)

    def fingerprint(self, secret: str) -> str:
        """Tells this secret from others, and nothing of it. Raises as `sealed`."""
        return self._box.fingerprint(secret)

    def _one(self, record: ProviderRecord, name: str, before: bytes | None, given: str | None) -> bytes | None:
        if given is None:
            return before
        return self._box.seal(given, _place(record, name)) if given else None


def bare_settings(draft: ProviderDraft) -> ProviderSettings:
    """A provider without credentials."""
    return ProviderSettings(
        name=draft.name,
        type=draft.type,
        api=None if draft.api is None else Api(draft.api),
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        is_registered=True,
    )


def with_credentials(settings: ProviderSettings, given: Credentials) -> ProviderSettings:
    """The settings with these credentials tried instead; what is not given stays."""
    stored = {name.lower(): value for name, value in settings.headers.items()}
    headers = {name: value if value is not None else stored.get(name.lower(), "") for name, value in given.headers}
    return replace(
        settings,
        api_key=settings.api_key if given.api_key is None else (given.api_key or None),
        headers=headers or settings.headers,
    )


def _place(record: ProviderRecord, name: str) -> str:
    return f"{record.organization_id}/{record.id}/{name}"


def _header(record: ProviderRecord, name: str) -> str:
    return _place(record, f"header/{name.lower()}")
