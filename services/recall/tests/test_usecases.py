"""The use cases refuse invalid arguments themselves, for callers that do not come over the wire."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.call_context import Role as CallerRole
from mnemesh_kit.errors import InvalidArgument, PermissionDenied
from mnemesh_kit.ids import new_id
from mnemesh_recall.model.contexts import NewContext, StepCommit
from mnemesh_recall.model.episodes import EpisodeCommit, NewFact, Scope, ScopeKind
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.search import MessageSearch, SearchScope
from mnemesh_recall.usecases.episodes import EpisodeService
from mnemesh_recall.usecases.messages import MessageService
from mnemesh_retrieval.index import SearchMode
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.recall import WriterLease

AGENT, CONVERSATION = new_id("agent"), new_id("conv")
USER = Message(id=new_id("message"), role=Role.USER, created_at=datetime(2026, 1, 1, tzinfo=UTC))
STEP = StepCommit(
    agent_id=AGENT,
    conversation_id=CONVERSATION,
    step_id=new_id("step"),
    lease=WriterLease(new_id("run"), 1),
    base_version=1,
    messages=(USER,),
)
SEARCH = MessageSearch(query="heron", mode=SearchMode.TEXT, limit=5, scope=SearchScope())


class UnusedStore:
    """A store whose methods must not be called."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError(f"{name} was called")

        return fail


UNUSED: Any = UnusedStore()
messages = MessageService(UNUSED, UNUSED, UNUSED, UNUSED)
episodes = EpisodeService(UNUSED, UNUSED, UNUSED)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (
            messages.create_context(
                DEFAULT_PRINCIPAL, NewContext(agent_id=AGENT, conversation_id=CONVERSATION, messages=(USER,)), None
            ),
            "messages[0].role",
        ),
        (messages.commit_step(DEFAULT_PRINCIPAL, replace(STEP, step_id="step-1")), "step_id"),
        (messages.commit_step(DEFAULT_PRINCIPAL, replace(STEP, lease=WriterLease("", 1))), "lease.run_id"),
        (
            messages.commit_step(DEFAULT_PRINCIPAL, replace(STEP, messages=(replace(USER, agent_id=new_id("agent")),))),
            "messages[0].agent_id",
        ),
        (
            messages.append_messages(
                DEFAULT_PRINCIPAL,
                MessageBatch(
                    agent_id=AGENT, conversation_id=None, messages=(replace(USER, content=(TextPart("\0"),)),)
                ),
                None,
            ),
            "messages[0].content[0].text.text",
        ),
        (messages.get_messages(DEFAULT_PRINCIPAL, ["message-1"]), "message_ids[0]"),
        (messages.search_messages(DEFAULT_PRINCIPAL, replace(SEARCH, limit=101)), "limit"),
        (messages.erase_agent(DEFAULT_PRINCIPAL, "agent-1", None), "agent_id"),
        (episodes.commit_episode(DEFAULT_PRINCIPAL, EpisodeCommit(), None), "episode"),
        (
            episodes.create_fact(DEFAULT_PRINCIPAL, NewFact(text="Sails", scope=Scope(ScopeKind.AGENT, "team")), None),
            "fact.scope.agent_id",
        ),
        (
            episodes.update_fact(DEFAULT_PRINCIPAL, new_id("fact"), {"text": "Rows"}, None),
            "update_mask",
        ),
    ],
)
async def test_invalid_argument_is_refused_before_the_store_is_called(call: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await call
    assert refused.value.field == field


CLIENT = Principal(DEFAULT_PRINCIPAL.organization_id, DEFAULT_PRINCIPAL.subject_id, CallerRole.WRITER)


def append(**changes: Any) -> Any:
    batch = MessageBatch(agent_id=AGENT, conversation_id=CONVERSATION, messages=(USER, replace(USER, **changes)))
    return messages.append_messages(CLIENT, batch, None)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        *((append(role=role), "messages[1].role") for role in set(Role) - {Role.USER, Role.SYSTEM}),
        (append(run_id=new_id("run")), "messages[1].run_id"),
        (append(step_id=new_id("step")), "messages[1].step_id"),
        (append(model="a/b"), "messages[1].model"),
        (
            episodes.commit_episode(
                CLIENT, EpisodeCommit(lease=WriterLease(new_id("run"), 1 << 62), conversation_id=CONVERSATION), None
            ),
            "lease",
        ),
    ],
)
async def test_client_does_not_write_as_the_step_loop(call: Any, field: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        await call
    assert refused.value.metadata == {"field": field, "required_role": "service"}
