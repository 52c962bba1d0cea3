"""The stores on each SQL engine."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.store.agents import AgentStore, PartnerStore
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.store.budgets import Budgets, BudgetStore
from mnemesh_orchestrator.store.callbacks import CallbackStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.deltas import DeltaStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.identities import IdentityStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.memory_extractions import MemoryExtractionStore
from mnemesh_orchestrator.store.run_relations import BatchStore, RunRelationStore, RunRetention
from mnemesh_orchestrator.store.run_rows import StepStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_orchestrator.store.sleeptime import SleeptimeStore
from mnemesh_orchestrator.store.tables import conversations
from mnemesh_orchestrator.store.turn_statements import LeaseClock
from mnemesh_orchestrator.store.webhooks import WebhookStore

from ..support.written_groups import WrittenGroups
from .agent_suite import AgentStoreSuite
from .approval_suite import ApprovalStoreSuite
from .batch_suite import BatchStoreSuite
from .budget_suite import BudgetStoreSuite
from .conversation_suite import ConversationStoreSuite
from .extraction_suite import ExtractionStoreSuite
from .group_run_suite import GroupRunStoreSuite
from .group_suite import GroupStoreSuite
from .identity_suite import IdentityStoreSuite
from .lease_suite import DeltaStoreSuite, LeaseStoreSuite, RetentionSuite
from .partner_suite import PartnerStoreSuite
from .records import a_run
from .run_relation_suite import RunRelationSuite
from .run_suite import RunStoreSuite
from .schedule_suite import ScheduleStoreSuite
from .sleeptime_suite import SleeptimeStoreSuite
from .step_suite import StepStoreSuite
from .webhook_suite import WebhookStoreSuite


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


async def _opened(url: str) -> AsyncIterator[Database]:
    database = Database.open(url)
    await database.migrate("mnemesh_orchestrator")
    yield database
    await database.close()


class OnSqlite:
    @pytest_asyncio.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        async for database in _opened(f"sqlite:///{tmp_path / 'orchestrator.db'}"):
            yield database


class OnPostgres:
    pytestmark = pytest.mark.full

    @pytest_asyncio.fixture
    async def database(self, postgres_url: str) -> AsyncIterator[Database]:
        async for database in _opened(postgres_url):
            yield database


class Stores:
    @pytest.fixture
    def agents(self, database: Database, clock: FrozenClock) -> AgentStore:
        return AgentStore(database, clock)

    @pytest.fixture
    def approvals(self, database: Database, clock: FrozenClock) -> ApprovalStore:
        return ApprovalStore(database, clock)

    @pytest.fixture
    def runs(self, database: Database, clock: FrozenClock) -> RunStore:
        return RunStore(database, clock)

    @pytest.fixture
    def batches(self, database: Database, clock: FrozenClock) -> BatchStore:
        return BatchStore(database, LeaseClock(clock))

    @pytest.fixture
    def budgets(self, database: Database, clock: FrozenClock) -> BudgetStore:
        return BudgetStore(database, clock, Budgets())

    @pytest.fixture
    def callbacks(self, database: Database, clock: FrozenClock) -> CallbackStore:
        return CallbackStore(database, clock)

    @pytest.fixture
    def leases(self, database: Database, clock: FrozenClock) -> LeaseStore:
        return LeaseStore(database, LeaseClock(clock))

    @pytest.fixture
    def deltas(self, database: Database, clock: FrozenClock) -> DeltaStore:
        return DeltaStore(database, LeaseClock(clock))

    @pytest.fixture
    def retention(self, database: Database) -> RunRetention:
        return RunRetention(database)

    @pytest.fixture
    def threads(self, database: Database, clock: FrozenClock) -> ConversationStore:
        return ConversationStore(database, clock)

    @pytest.fixture
    def recorded(self, database: Database, clock: FrozenClock) -> StepStore:
        return StepStore(database, clock)

    @pytest.fixture
    def identities(self, database: Database, clock: FrozenClock) -> IdentityStore:
        return IdentityStore(database, clock)

    @pytest.fixture
    def schedules(self, database: Database, clock: FrozenClock) -> ScheduleStore:
        return ScheduleStore(database, clock, LeaseClock(clock))

    @pytest.fixture
    def webhooks(self, database: Database, clock: FrozenClock) -> WebhookStore:
        return WebhookStore(database, clock)

    @pytest.fixture
    def sleeptime(self, database: Database, clock: FrozenClock) -> SleeptimeStore:
        return SleeptimeStore(database, clock)

    @pytest.fixture
    def extractions(self, database: Database, clock: FrozenClock) -> MemoryExtractionStore:
        return MemoryExtractionStore(database, clock)

    @pytest.fixture
    def groups(self, database: Database, clock: FrozenClock) -> GroupStore:
        return WrittenGroups(database, clock)

    @pytest.fixture
    def partners(self, database: Database, clock: FrozenClock) -> PartnerStore:
        return PartnerStore(database, clock)

    @pytest.fixture
    def relations(self, database: Database) -> RunRelationStore:
        return RunRelationStore(database)


class TestAgentsOnSqlite(OnSqlite, Stores, AgentStoreSuite):
    pass


class TestAgentsOnPostgres(OnPostgres, Stores, AgentStoreSuite):
    pass


class TestRunsOnSqlite(OnSqlite, Stores, RunStoreSuite):
    pass


class TestRunsOnPostgres(OnPostgres, Stores, RunStoreSuite):
    pass


class TestBatchesOnSqlite(OnSqlite, Stores, BatchStoreSuite):
    pass


class TestBatchesOnPostgres(OnPostgres, Stores, BatchStoreSuite):
    pass


class TestRelationsOnSqlite(OnSqlite, Stores, RunRelationSuite):
    pass


class TestRelationsOnPostgres(OnPostgres, Stores, RunRelationSuite):
    pass


class TestStepsOnSqlite(OnSqlite, Stores, StepStoreSuite):
    pass


class TestStepsOnPostgres(OnPostgres, Stores, StepStoreSuite):
    pass


class TestLeasesOnSqlite(OnSqlite, Stores, LeaseStoreSuite):
    pass


class TestLeasesOnPostgres(OnPostgres, Stores, LeaseStoreSuite):
    async def test_leases_expire_by_the_clock_of_the_database(self, database: Database, agent: Agent) -> None:
        """The clock of one of two processes is an hour ahead: neither takes the lease of the other for expired."""
        late, early = FrozenClock(), FrozenClock()
        early.advance(3600)
        mine = RunStore(database, late, LeaseClock.of(database, late))
        theirs = RunStore(database, early, LeaseClock.of(database, early))
        started = await mine.start(None, a_run(agent, late), "me", reject_busy=False)
        assert started.claim is not None
        assert await theirs.claim_next(agent.default_conversation_id, "you") is None
        assert await LeaseStore(database, LeaseClock.of(database, early)).claimable("you") == ()
        lapsed = sa.update(conversations).values(lease_expires_at=sa.func.clock_timestamp())
        await database.write(lambda conn: conn.execute(lapsed))
        taken = await theirs.claim_next(agent.default_conversation_id, "you")
        assert taken is not None
        expires, now = sa.select(conversations.c.lease_expires_at), sa.select(sa.func.clock_timestamp())
        left = await database.read(lambda conn: conn.execute(expires).scalar_one() - conn.execute(now).scalar_one())
        assert timedelta(seconds=20) < left <= timedelta(seconds=30)


class TestApprovalsOnSqlite(OnSqlite, Stores, ApprovalStoreSuite):
    pass


class TestApprovalsOnPostgres(OnPostgres, Stores, ApprovalStoreSuite):
    pass


class TestDeltasOnSqlite(OnSqlite, Stores, DeltaStoreSuite):
    pass


class TestDeltasOnPostgres(OnPostgres, Stores, DeltaStoreSuite):
    pass


class TestRetentionOnSqlite(OnSqlite, Stores, RetentionSuite):
    pass


class TestRetentionOnPostgres(OnPostgres, Stores, RetentionSuite):
    pass


class TestPartnersOnSqlite(OnSqlite, Stores, PartnerStoreSuite):
    pass


class TestPartnersOnPostgres(OnPostgres, Stores, PartnerStoreSuite):
    pass


class TestIdentitiesOnSqlite(OnSqlite, Stores, IdentityStoreSuite):
    pass


class TestIdentitiesOnPostgres(OnPostgres, Stores, IdentityStoreSuite):
    pass


class TestGroupsOnSqlite(OnSqlite, Stores, GroupStoreSuite):
    pass


class TestGroupsOnPostgres(OnPostgres, Stores, GroupStoreSuite):
    pass


class TestSchedulesOnSqlite(OnSqlite, Stores, ScheduleStoreSuite):
    pass


class TestSchedulesOnPostgres(OnPostgres, Stores, ScheduleStoreSuite):
    pass


class TestWebhooksOnSqlite(OnSqlite, Stores, WebhookStoreSuite):
    pass


class TestWebhooksOnPostgres(OnPostgres, Stores, WebhookStoreSuite):
    pass


class TestSleeptimeOnSqlite(OnSqlite, Stores, SleeptimeStoreSuite):
    pass


class TestSleeptimeOnPostgres(OnPostgres, Stores, SleeptimeStoreSuite):
    pass


class TestExtractionsOnSqlite(OnSqlite, Stores, ExtractionStoreSuite):
    pass


class TestExtractionsOnPostgres(OnPostgres, Stores, ExtractionStoreSuite):
    pass


class TestBudgetsOnSqlite(OnSqlite, Stores, BudgetStoreSuite):
    pass


class TestBudgetsOnPostgres(OnPostgres, Stores, BudgetStoreSuite):
    pass


class TestConversationsOnSqlite(OnSqlite, Stores, ConversationStoreSuite):
    pass


class TestConversationsOnPostgres(OnPostgres, Stores, ConversationStoreSuite):
    pass


class TestGroupRunsOnSqlite(OnSqlite, Stores, GroupRunStoreSuite):
    pass


class TestGroupRunsOnPostgres(OnPostgres, Stores, GroupRunStoreSuite):
    pass
