"""Credentials of providers: encrypted again when the key is replaced."""

from dataclasses import replace
from pathlib import Path

from mnemesh_kit.secret_variables import SecretBox
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.model.models import Credentials, ProviderDraft, ProviderRecord


def test_credentials_are_encrypted_with_the_first_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"

    def sealer(*names: str) -> CredentialSealer:
        keys.write_text("".join(f"{name * 32}\n" for name in names))
        return CredentialSealer(SecretBox(str(keys)))

    now = FrozenClock().now()
    record = ProviderRecord(
        id="provider-1",
        organization_id="org-1",
        draft=ProviderDraft(name="mine", type="openai"),
        created_at=now,
        updated_at=now,
    )
    given = Credentials(api_key="api key", headers=(("X-Key", "header"),))
    stored = replace(record, credentials=sealer("a").seal(record, given))
    again = replace(stored, credentials=sealer("b", "a").resealed(stored))
    assert again != stored
    assert sealer("b", "a").resealed(again) == again.credentials
    opened = sealer("b").open_settings(again)
    assert (opened.api_key, dict(opened.headers)) == ("api key", {"X-Key": "header"})
