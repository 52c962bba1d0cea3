"""The use cases of the web: searches, and the text of pages."""

import time
from collections import OrderedDict
from contextlib import AsyncExitStack
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.metrics import Counter, Metric
from mnemesh_sandbox import SandboxUnavailable
from mnemesh_sandbox.egress.policy import NetworkConnection, Resolver
from mnemesh_types.tools import SearchAnswer

from mnemesh_tools.errors import SandboxTooWeak, WebPageRefused, WebSearchNotConfigured
from mnemesh_tools.model.web import PagePart, WebPage, WebSearch, part_of, require_part
from mnemesh_tools.usecases.networks import ToolNetworks
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_tools.web.pages import PageReader
from mnemesh_tools.web.searcher import WebSearcher

PAGE_SECONDS: Final = 300.0
"""How long a page is kept for the requests of its further parts."""
MAX_KEPT_CHARS: Final = 16_000_000
_MAX_URL_CHARS: Final = 2_000
_log = structlog.get_logger("mnemesh.tools.web")


class WebService:
    """Searches the web and reads pages of it."""

    def __init__(
        self,
        searcher: WebSearcher | None,
        reader: PageReader | None,
        networks: ToolNetworks,
        resolver: Resolver,
        downloads: FairSlots,
        slots: FairSlots,
    ) -> None:
        """Keeps no page yet.

        Args:
            searcher: Asks the configured provider; None if there is none.
            reader: Downloads and reads pages; None if tools have no network access on this server.
            networks: Logs and counts connections.
            resolver: Resolves names.
            downloads: The downloads at the same time.
            slots: The executions at the same time, of which the reading of a page is one.
        """
        self._searcher = searcher
        self._reader = reader
        self._networks = networks
        self._resolver = resolver
        self._downloads = downloads
        self._slots = slots
        self._kept = _KeptPages()
        self._searches = Counter("mnemesh_tools_web_searches", "Searches of the web, by outcome.", ["outcome"])

    async def search(self, caller: Principal, search: WebSearch) -> SearchAnswer:
        """Returns the results of a search.

        Raises:
            WebSearchNotConfigured: There is no provider.
            WebSearchUnavailable: The provider does not answer as it should.
            WebSearchRefused: The provider refuses the key or the request.
        """
        if self._searcher is None:
            raise WebSearchNotConfigured
        await async_failpoint("web.before_search", "")
        try:
            answer = await self._searcher.search(search)
        except BaseException:
            self._searches.inc("failed")
            raise
        self._searches.inc("answered")
        _log.info("web_searched", organization_id=caller.organization_id, results=len(answer.results))
        return answer

    async def fetch(self, caller: Principal, url: str, start: int, max_chars: int) -> PagePart:
        """Returns a part of a page's text.

        Raises:
            InvalidArgument: There is no such part.
            WebPageRefused: The URL, or one to which it redirects, may not be fetched.
            WebPageUnreadable: No text can be read from the page.
            SandboxTooWeak: This host cannot isolate the reader of documents.
            ToolSlotsBusy: Too many pages are being read.
        """
        require_part(start, max_chars)
        url = url.strip()
        if not url or len(url) > _MAX_URL_CHARS:
            raise InvalidArgument(f"url must have between 1 and {_MAX_URL_CHARS:,} characters.", field="url")
        page = self._kept.get(caller.organization_id, url) if start else None
        if page is None:
            page = await self._read(caller, url)
            self._kept.put(caller.organization_id, url, page)
        return part_of(page, start, max_chars)

    def metrics(self) -> list[Metric]:
        """Returns the metrics of searches. Connections of pages count as those of tools."""
        return [self._searches]

    async def _read(self, caller: Principal, url: str) -> WebPage:
        if self._reader is None:
            raise WebPageRefused("Tools have no network access on this server (MNEMESH_TOOLS_NETWORK=none).", url)
        organization = caller.organization_id

        def ended(connection: NetworkConnection) -> None:
            self._networks.audit(connection, organization, "fetch_webpage")

        await async_failpoint("web.before_fetch", "")
        async with self._downloads.hold(organization):
            page, raw, charset = await self._reader.download(url, self._resolver.for_organization(organization), ended)
        try:
            async with AsyncExitStack() as slot:
                await slot.enter_async_context(self._slots.hold(organization))
                return await self._reader.read(page, raw, charset, slot)
        except SandboxUnavailable as error:
            raise SandboxTooWeak(str(error), missing=",".join(error.missing)) from error


class _KeptPages:
    """The pages that were read last. Organizations do not share them."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, str], tuple[float, WebPage]] = OrderedDict()
        self._chars = 0

    def get(self, organization_id: str, url: str) -> WebPage | None:
        """Returns a page that was read recently."""
        self._drop_old()
        found = self._pages.get((organization_id, url))
        return None if found is None else found[1]

    def put(self, organization_id: str, url: str, page: WebPage) -> None:
        """Keeps a page, in place of an earlier version."""
        _, earlier = self._pages.pop((organization_id, url), (0.0, None))
        self._chars += len(page.text) - (0 if earlier is None else len(earlier.text))
        self._pages[organization_id, url] = (time.monotonic() + PAGE_SECONDS, page)
        self._drop_old()

    def _drop_old(self) -> None:
        while self._pages:
            until, page = next(iter(self._pages.values()))
            if until > time.monotonic() and self._chars <= MAX_KEPT_CHARS:
                return
            self._chars -= len(page.text)
            self._pages.popitem(last=False)
