"""The use cases of tools, with their sources and their environment variables.

Each runs in one transaction, unless it says otherwise.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import Aborted, InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id, require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.text import require_no_nul, require_searchable_fields
from mnemesh_kit.time import Clock
from mnemesh_types.tools import SourceType, ToolFilter, ToolType

from mnemesh_tools.errors import ToolNameTaken, ToolSourceInvalid
from mnemesh_tools.model.definitions import (
    Source,
    complete_spec,
    merge_spec,
    require_valid_fields,
    source_of,
    writes_source,
)
from mnemesh_tools.model.executions import Invocation
from mnemesh_tools.model.packages import ServerSupport, require_runnable
from mnemesh_tools.model.tools import (
    MAX_BATCH,
    BuiltinTools,
    RestoredTool,
    Tool,
    ToolOrder,
    ToolSecret,
    ToolSpec,
)
from mnemesh_tools.schema import MAX_SOURCE_CHARS, SourceFacts, read_in_process, read_source, read_typescript
from mnemesh_tools.store.tools import ToolStore, ToolTransaction
from mnemesh_tools.usecases import changes
from mnemesh_tools.usecases.slots import FairSlots

_PLACE: Final = "tool.secrets"


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """The environment variables of one execution."""

    plain: dict[str, str]
    secrets: dict[str, str]
    """Variables that override the others. No text that leaves the service has their values."""


class ToolEnvironments:
    """Stores the variables of tools, and returns those of executions."""

    def __init__(self, variables: SecretVariables) -> None:
        self._variables = variables

    def fingerprint(self, value: str) -> str:
        """Returns a text that identifies a value and reveals nothing of it. Raises SecretsKeyMissing."""
        return self._variables.fingerprint(value)

    def stored(self, tool_id: str, spec: ToolSpec, before: ToolSpec | None = None) -> ToolSpec:
        """Returns a definition as it is stored: with encrypted values in place of those of a request.

        Args:
            tool_id: The tool.
            spec: Its new definition.
            before: Its current definition; None for a new tool.

        Raises:
            InvalidArgument: A variable has no value, and none is stored under its name.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        known = () if before is None else before.secrets
        if spec.secrets == known:
            return spec
        values = {secret.name: secret.value for secret in spec.secrets}
        stored = [secret.stored for secret in known if secret.stored is not None]
        merged = self._variables.merged(tool_id, stored, self._variables.sealed(tool_id, values), _PLACE)
        return replace(spec, secrets=tuple(ToolSecret(variable.name, stored=variable) for variable in merged))

    def of(self, tool: Tool | None, invocation: Invocation) -> ToolEnvironment:
        """Returns the variables of an execution. Those of the caller override those of the tool.

        Args:
            tool: The tool; None for an ad hoc one, which has no variables.
            invocation: The inputs, whose agent has variables of the lowest precedence.

        Raises:
            SecretUnreadable: A value cannot be decrypted with the keys of this server.
        """
        agent, plain = invocation.agent, {}
        if agent is not None and agent.agent_id:
            plain = {"AGENT_ID": agent.agent_id, "LETTA_AGENT_ID": agent.agent_id}
            if invocation.project_id is not None:
                plain["PROJECT_ID"] = invocation.project_id
        own = {}
        if tool is not None and tool.spec.secrets:
            own = self._variables.opened(tool.id, [s.stored for s in tool.spec.secrets if s.stored is not None])
        return ToolEnvironment(plain, {**own, **invocation.environment})


# A source of this length takes about as long as the switch to a thread, whatever it contains.
_MAX_CHARS_AT_ONCE: Final = 2_000
# A source of this length takes at most some hundredths of a second.
_MAX_CHARS_IN_THREAD: Final = 20_000
PROCESSES: Final = 2
"""The number of large sources that are read at the same time."""
_PROCESS_SECONDS: Final = 10.0
_WAIT_SECONDS: Final = 20.0
_CACHED: Final = 500


class SourceReader:
    """Reads all but small sources in a thread, and large ones in a process with a time limit. Remembers the latest."""

    def __init__(self, per_organization: int = PROCESSES) -> None:
        """Creates an empty memory.

        Args:
            per_organization: The number of large sources of one organization that are read at the same time.
        """
        self._slots = FairSlots(PROCESSES, per_organization, _WAIT_SECONDS, "large sources to read")
        self._processes = ThreadPoolExecutor(PROCESSES, thread_name_prefix="source-reader")
        self._known: OrderedDict[tuple[str, SourceType, bytes, str | None], SourceFacts] = OrderedDict()

    async def read(self, caller: Principal, source: Source, field: str, name: str | None = None) -> SourceFacts:
        """Returns the facts about the last function of `source`, or about the function `name`.

        Args:
            caller: Whose source it is.
            source: The source.
            field: The request's field, for errors.
            name: A function at the top level of the source.

        Raises:
            ToolSourceInvalid: The source is not valid, has no such function, or takes too long to be parsed.
            ToolSlotsBusy: Too many large sources are read.
        """
        source_type, text = source
        if len(text) > MAX_SOURCE_CHARS:
            raise ToolSourceInvalid(f"The source must be at most {MAX_SOURCE_CHARS:,} characters.", field=field)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        key = caller.organization_id, source_type, digest, name
        facts = self._known.pop(key, None)
        if facts is None:
            read = read_source if source_type is SourceType.PYTHON else read_typescript
            if len(text) <= _MAX_CHARS_AT_ONCE:
                facts = read(text, field, name=name)
            elif len(text) <= _MAX_CHARS_IN_THREAD:
                facts = await asyncio.to_thread(read, text, field, name=name)
            else:
                facts = await self._read_large(caller, source, field, name)
        self._known[key] = facts
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return facts

    async def _read_large(self, caller: Principal, source: Source, field: str, name: str | None) -> SourceFacts:
        async with self._slots.hold(caller.organization_id):
            loop = asyncio.get_running_loop()
            source_type, text = source
            arguments = (source_type.value, text, field, name, _PROCESS_SECONDS)
            reading = loop.run_in_executor(self._processes, read_in_process, *arguments)
            try:
                return await asyncio.shield(reading)
            finally:
                await asyncio.wait([reading])  # a caller who is cancelled keeps the slot while the process runs


_DECIDES_RUNNABLE: Final = ("source_type", "pip_requirements", "npm_requirements", "allow_network", "network_hosts")


class ToolService:
    """Creates, reads, changes and deletes the tools of the caller's organization."""

    def __init__(
        self,
        store: ToolStore,
        clock: Clock,
        ids: IdSource,
        builtin_tools: BuiltinTools,
        sources: SourceReader,
        support: ServerSupport,
        prepare: Callable[[Tool], None],
        environments: ToolEnvironments,
    ) -> None:
        """Stores the parts.

        Args:
            store: The tools.
            clock: The times of changes.
            ids: The ids of new tools.
            builtin_tools: The initial tools of each organization.
            sources: Reads the sources of tools.
            support: What this server gives to tools.
            prepare: Begins to install the packages of a tool, in the background.
            environments: Stores the environment variables of tools.
        """
        self._environments = environments
        self._support = support
        self._prepare = prepare
        self._store = store
        self._clock = clock
        self._ids = ids
        self._builtin_tools = builtin_tools
        self._sources = sources
        self._seeded_organizations: set[str] = set()

    async def create_tool(
        self, caller: Principal, spec: ToolSpec, key: RequestKey | None, restored: RestoredTool | None = None
    ) -> Tool:
        """Stores a tool under the name that its source or schema has. `restored` has values of one that was exported.

        Raises:
            InvalidArgument: A field breaks its rule, or the type is BUILTIN.
            ToolSourceInvalid: The source yields no schema.
            ToolNameTaken: The organization has a tool with this name.
        """
        tool = await self._new_definition(caller, spec, restored)
        await self.seed_builtin_tools(caller)
        stored = await self._store.write_once(
            caller.organization_id,
            key,
            lambda tx: changes.insert_tool(tx, tool),
            result_ids=lambda created: [created.id],
            replay=lambda tx, ids: changes.get_tool(tx, ids[0]),
        )
        self._prepare(stored)
        return stored

    async def upsert_tool(
        self, caller: Principal, spec: ToolSpec, written: Collection[str], key: RequestKey | None
    ) -> tuple[Tool, bool]:
        """Creates a tool, or writes the fields `written` of the tool with the same name.

        Returns:
            The tool, and whether it was created.

        Raises:
            InvalidArgument: A field breaks its rule, or the type is BUILTIN.
            ToolSourceInvalid: The source yields no schema.
            ToolNameTaken: A built-in tool has this name.
        """
        tool = await self._new_definition(caller, spec)
        await self.seed_builtin_tools(caller)
        name, kept = tool.spec.name, set(written) - {"name"}
        found = await self._store.read(caller.organization_id, lambda tx: tx.get_tool_by_name(name))
        facts = await self._facts(caller, spec, None if found is None else found.spec)

        def upsert(tx: ToolTransaction) -> tuple[Tool, bool]:
            stored = tx.get_tool_by_name(name)
            if stored is None:
                tx.insert_tools(tool)
                return tool, True
            if stored.spec.type is ToolType.BUILTIN:
                raise ToolNameTaken(stored.spec.name)
            merged = self._merged(stored, spec, kept, facts)
            return changes.update_tool(tx, stored, merged, caller.subject_id, self._clock.now()), False

        stored, created = await self._store.write_once(
            caller.organization_id,
            key,
            upsert,
            result_ids=lambda result: [result[0].id, "created" if result[1] else "updated"],
            replay=lambda tx, ids: (changes.get_tool(tx, ids[0]), ids[1] == "created"),
        )
        self._prepare(stored)
        return stored, created

    async def update_tool(
        self, caller: Principal, tool_id: str, spec: ToolSpec, written: Collection[str], key: RequestKey | None
    ) -> Tool:
        """Writes the fields `written` of a tool; see `merge_spec` for the effect on its name and schema.

        Raises:
            InvalidArgument: A field breaks its rule.
            ToolSourceInvalid: The source yields no schema.
            ToolNotFound: The organization has no such tool.
            ToolNameTaken: Another tool has the new name.
        """
        require_id(tool_id, "tool", "tool.id")
        found = await self._store.read(caller.organization_id, lambda tx: tx.get_tool(tool_id))
        changed = spec if found is None else merge_spec(found.spec, spec, written)
        require_valid_fields(changed)
        require_runnable(changed, written, self._support)
        facts = await self._facts(caller, changed, None if found is None else found.spec)

        def update(tx: ToolTransaction) -> Tool:
            stored = changes.get_tool(tx, tool_id)
            merged = self._merged(stored, spec, written, facts)
            return changes.update_tool(tx, stored, merged, caller.subject_id, self._clock.now())

        stored = await self._store.write_once(
            caller.organization_id,
            key,
            update,
            result_ids=lambda updated: [updated.id],
            replay=lambda tx, ids: changes.get_tool(tx, ids[0]),
        )
        self._prepare(stored)
        return stored

    async def delete_tool(self, caller: Principal, tool_id: str, key: RequestKey | None) -> None:
        """Deletes a tool. Succeeds if the tool does not exist."""
        require_id(tool_id, "tool", "tool_id")

        def delete(tx: ToolTransaction) -> None:
            tx.delete_tool(tool_id)

        await self._store.write_once(
            caller.organization_id, key, delete, result_ids=lambda _: [], replay=lambda _tx, _ids: None
        )

    async def get_tool(self, caller: Principal, tool_id: str) -> Tool:
        """Returns the tool with this id.

        Raises:
            ToolNotFound: The organization has no such tool.
        """
        require_id(tool_id, "tool", "tool_id")
        return await self._store.read(caller.organization_id, lambda tx: changes.get_tool(tx, tool_id))

    async def get_tool_by_name(self, caller: Principal, name: str) -> Tool:
        """Returns the tool with this name.

        Raises:
            ToolNotFound: The organization has no such tool.
        """
        require_no_nul(name, "name")
        await self.seed_builtin_tools(caller)
        return await self._store.read(caller.organization_id, lambda tx: changes.get_tool_by_name(tx, name))

    async def batch_get_tools(
        self, caller: Principal, ids: Sequence[str], names: Sequence[str], skip: int = 0
    ) -> Sequence[Tool | None]:
        """Returns the tools with these ids, then those with these names, without the first `skip` of them.

        There is None for one that is unknown, or that another id or an earlier name stands for.
        """
        if len(ids) + len(names) > MAX_BATCH:
            raise InvalidArgument(f"tool_ids and names must have at most {MAX_BATCH} entries.", field="tool_ids")
        for field, texts in (("tool_ids", ids), ("names", names)):
            for text in texts:
                require_no_nul(text, field)
        if names:
            await self.seed_builtin_tools(caller)
        left_ids, left_names = ids[skip:], names[max(0, skip - len(ids)) :]
        found = await self._store.read(caller.organization_id, lambda tx: tx.get_tools(left_ids, left_names))
        return changes.in_places(found, ids, names)[skip:]

    async def list_tools(self, caller: Principal, filter_: ToolFilter, order: ToolOrder, page: PageQuery) -> Page[Tool]:
        """Returns a page of the tools that match the filter, sorted by `order`."""
        require_searchable_fields(filter_)
        await self.seed_builtin_tools(caller)
        return await self._store.read(caller.organization_id, lambda tx: tx.list_tools(filter_, order, page))

    async def count_tools(self, caller: Principal, filter_: ToolFilter) -> int:
        """Returns the number of tools that match the filter."""
        require_searchable_fields(filter_)
        await self.seed_builtin_tools(caller)
        return await self._store.read(caller.organization_id, lambda tx: tx.count_tools(filter_))

    async def ensure_base_tools(
        self, caller: Principal, specs: Sequence[ToolSpec], key: RequestKey | None
    ) -> Sequence[Tool]:
        """Stores definitions of built-in tools. Restores deleted tools and overwrites changed ones.

        Each tool is written in its own transaction, under a key derived from `key`. A repeat after a failure writes
        the rest.

        Raises:
            InvalidArgument: A field breaks its rule, or a type is not BUILTIN.
        """
        if any(spec.type is not ToolType.BUILTIN for spec in specs):
            raise InvalidArgument("tools must all have the type BUILTIN.", field="tools.type")
        complete = [complete_spec(spec) for spec in specs]
        return [await self._overwrite_tool(caller, spec, key) for spec in complete]

    async def generate_schema(self, caller: Principal, source: str, source_type: SourceType) -> str:
        """Returns the schema of a source as JSON text. The source is neither stored nor executed.

        Raises:
            ToolSourceInvalid: The source yields no schema.
        """
        facts = await self._sources.read(caller, (source_type, source), "source_code")
        return json.dumps(facts.require_schema("source_code").to_dict(), ensure_ascii=False)

    async def _new_definition(self, caller: Principal, spec: ToolSpec, restored: RestoredTool | None = None) -> Tool:
        """Returns the tool of a request to create one, checked and completed."""
        if spec.type is ToolType.BUILTIN:
            raise InvalidArgument(
                "tool.type must not be BUILTIN. EnsureBaseTools writes built-in tools.", field="tool.type"
            )
        require_valid_fields(spec)
        require_runnable(spec, _DECIDES_RUNNABLE, self._support)
        # A tool that is restored may have been renamed by a schema.
        facts = await self._facts(caller, spec)
        tool = self._new_tool(caller, _completed(spec, facts, is_source_new=restored is None))
        if restored is not None:
            tool = restored.applied(tool)
        return replace(tool, spec=self._environments.stored(tool.id, tool.spec))

    def _merged(
        self, tool: Tool, spec: ToolSpec, written: Collection[str], facts: Mapping[Source, SourceFacts]
    ) -> ToolSpec:
        """Returns the definition of a stored tool after the fields `written` were taken from `spec`."""
        merged = _completed(merge_spec(tool.spec, spec, written), facts, is_source_new=writes_source(written))
        return self._environments.stored(tool.id, merged, tool.spec)

    async def _facts(self, caller: Principal, *specs: ToolSpec | None) -> Mapping[Source, SourceFacts]:
        """Returns the facts about the sources of these definitions. Transactions do not parse sources."""
        sources = {source for spec in specs if spec is not None and (source := source_of(spec))}
        return {source: await self._sources.read(caller, source, "tool.source_code") for source in sources}

    async def _overwrite_tool(self, caller: Principal, spec: ToolSpec, key: RequestKey | None) -> Tool:
        tool = self._new_tool(caller, spec)

        def overwrite(tx: ToolTransaction) -> Tool:
            stored = tx.get_tool_by_name(spec.name)
            if stored is None:
                tx.insert_tools(tool)
                return tool
            return changes.update_tool(tx, stored, spec, caller.subject_id, self._clock.now())

        return await self._store.write_once(
            caller.organization_id,
            None if key is None else replace(key, request_id=derive_id("tool", key.request_id, spec.name)),
            overwrite,
            result_ids=lambda written: [written.id],
            replay=lambda tx, ids: changes.get_tool(tx, ids[0]),
        )

    async def seed_builtin_tools(self, caller: Principal) -> None:
        """Stores the built-in tools of this release, once for each organization.

        An organization that has those of another release gets the new tools, and the new schemas of the tools that it
        still has. A tool of another type that has the name of a built-in tool is kept.
        """
        organization_id, release = caller.organization_id, self._builtin_tools.release
        if organization_id in self._seeded_organizations or not self._builtin_tools.specs:
            return

        def seed(tx: ToolTransaction) -> None:
            if tx.get_builtin_release() == release:
                return
            specs = {spec.name: spec for spec in self._builtin_tools.specs}
            for stored in tx.get_tools((), tuple(specs)):
                spec = specs.pop(stored.spec.name)
                if stored.spec.type is ToolType.BUILTIN:
                    merged = replace(stored.spec, json_schema=spec.json_schema)
                    changes.update_tool(tx, stored, merged, "", self._clock.now())
            new = (self._new_tool(caller, spec) for spec in specs.values())
            tx.insert_tools(*(replace(tool, created_by_id="", last_updated_by_id="") for tool in new))
            tx.set_builtin_release(release)

        # A read of its own, so that an organization that has the tools costs no write.
        if await self._store.read(organization_id, lambda tx: tx.get_builtin_release()) != release:
            await self._store.write(organization_id, seed)
        self._seeded_organizations.add(organization_id)

    def _new_tool(self, caller: Principal, spec: ToolSpec) -> Tool:
        now = self._clock.now()
        return Tool(
            id=self._ids.new("tool"),
            organization_id=caller.organization_id,
            spec=spec,
            revision=1,
            created_at=now,
            updated_at=now,
            created_by_id=caller.subject_id,
            last_updated_by_id=caller.subject_id,
        )


def _completed(spec: ToolSpec, facts: Mapping[Source, SourceFacts], *, is_source_new: bool) -> ToolSpec:
    """Returns the completed definition; see `complete_spec`.

    Raises:
        Aborted: Another request changed the source since the facts were read.
    """
    source = source_of(spec)
    if source and source not in facts:
        raise Aborted("Another request changed the tool at the same time. Read it again and retry.")
    return complete_spec(spec, facts[source] if source else None, is_source_new=is_source_new)
