"""The testkit's pytest plugin: fixtures, markers and options for the tests of every package.

Fixtures import what they need when they run, because every test run loads the plugin.
"""

import gc
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from mnemesh_testkit.databases.postgres import PostgresServer
    from mnemesh_testkit.fakes.anthropic import FakeAnthropic
    from mnemesh_testkit.fakes.openai import FakeOpenAI
    from mnemesh_testkit.mesh.fork_server import ForkServer
    from mnemesh_testkit.mesh.in_process import Mesh
    from mnemesh_testkit.mesh.processes import ProcessMesh

FULL = pytest.mark.full
_CONCURRENT = ("concurrent", "at_once")
"""Words in the names of tests whose outcome depends on the locks of the engine."""

Sample = Callable[..., Sequence[Any]]


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers, and removes the time limits of property tests."""
    config.option.full |= config.option.sweep
    config.addinivalue_line("markers", "mesh(**arguments): arguments of the Mesh or ProcessMesh of the test's fixture.")
    config.addinivalue_line("markers", "full: a test that runs only with --full.")
    config.addinivalue_line("markers", "sweep: a test that runs only with --sweep.")
    config.addinivalue_line("markers", "sampled(n): of a class, each nth test and those of concurrency; --full: all.")
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings  # noqa: PLC0415
        from hypothesis.internal.conjecture import providers  # noqa: PLC0415

        # The speed of drawing examples depends on the load of the machine, not on the property.
        settings.register_profile("mnemesh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("mnemesh")
        # Hypothesis parses every source of the packages in search of constants: seconds of each test process.
        providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--full`, `--sweep` and `--pgbouncer`."""
    parser.addoption(
        "--full", action="store_true", help="run every engine, tests marked `full`, and more of each sweep"
    )
    parser.addoption("--sweep", action="store_true", help="run what `--full` runs, with every point of each sweep")
    parser.addoption("--pgbouncer", action="store_true", help="reach PostgreSQL through a PgBouncer in all tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Makes the garbage collector cost less: a fifth of the time of tests.

    Collection creates a million objects that live until the end. Each complete collection would visit them, for a third
    of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what only `--full` or `--sweep` runs, and applies the time limits of a slow machine."""
    from mnemesh_testkit.timeouts import FACTOR  # noqa: PLC0415

    if FACTOR != 1:
        for item in items:
            seconds = item.get_closest_marker("timeout")
            if seconds is None:
                item.add_marker(pytest.mark.timeout(float(config.getini("timeout") or 0) * FACTOR))
    if config.getoption("--sweep"):
        return
    left: dict[bool, list[pytest.Item]] = {True: [], False: []}
    numbers: Counter[object] = Counter()
    is_full = config.getoption("--full")
    for item in items:
        is_left_out = item.get_closest_marker("sweep") is not None
        left[is_left_out or (not is_full and (_is_full(item) or _is_left_out(item, numbers)))].append(item)
    if left[True]:
        config.hook.pytest_deselected(items=left[True])
        items[:] = left[False]


def _is_full(item: pytest.Item) -> bool:
    """Returns whether only `--full` runs a test: it is marked, or it is a service's own test on its second engine.

    The suites of the services (a sample of them) and the tests of whole meshes run on PostgreSQL in every run.
    """
    if item.get_closest_marker("full") is not None:
        return True
    callspec = getattr(item, "callspec", None)
    return callspec is not None and item.nodeid.startswith("services/") and "postgresql" in callspec.params.values()


def _is_left_out(item: pytest.Item, numbers: "Counter[object]") -> bool:
    """Returns whether a class with the mark `sampled` leaves out a test. `numbers` counts the tests of each class."""
    mark = item.get_closest_marker("sampled")
    if mark is None or any(word in item.name for word in _CONCURRENT):
        return False
    numbers[item.parent] += 1
    return (numbers[item.parent] - 1) % int(mark.args[0]) != 0


@pytest.fixture(scope="session")
def is_full(pytestconfig: pytest.Config) -> bool:
    """True in a full run (`--full`)."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def is_sweep(pytestconfig: pytest.Config) -> bool:
    """True in a run with every point of each sweep (`--sweep`)."""
    return bool(pytestconfig.getoption("--sweep"))


@pytest.fixture(scope="session")
def sample(is_full: bool, is_sweep: bool) -> Sample:
    """Returns every nth case of a sweep: `sample(cases, n, full)`.

    With `--full` it returns every one whose number is a multiple of `full`, which is 1 if it is not given. With
    `--sweep` it returns all of them.
    """

    def sample(cases: Sequence[Any], n: int, full: int = 1) -> Sequence[Any]:
        return cases if is_sweep else cases[::full] if is_full else cases[::n]

    return sample


def sampled(cases: Sequence[Any], every: int) -> list[Any]:
    """Returns the cases of `pytest.mark.parametrize`. Without `--full`, the first and every nth after it run."""
    return [
        case if number % every == 0 else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=FULL)
        for number, case in enumerate(cases)
    ]


@pytest.fixture(scope="session", autouse=True)
def _fresh_databases() -> Iterator[None]:
    """See `mnemesh_testkit.databases.template_databases`."""
    from mnemesh_testkit.databases.template_databases import template_databases  # noqa: PLC0415

    with template_databases():
        yield


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    """HTTP clients share one TLS context with the public authorities: each would read 140 of them, for 20 ms of CPU."""
    import certifi  # noqa: PLC0415
    import httpcore2  # noqa: PLC0415

    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    create, create_of_httpx2 = ssl.create_default_context, httpcore2.default_ssl_context
    shared: dict[tuple[object, ...], ssl.SSLContext] = {}

    def create_once(*arguments: Any, **options: Any) -> ssl.SSLContext:
        if arguments or options != {"cafile": certifi.where()}:  # not a client of httpx
            return create(*arguments, **options)
        key = ("httpx", options["cafile"])
        if key not in shared:
            shared[key] = create(**options)
        return shared[key]

    def create_once_of_httpx2(**options: Any) -> ssl.SSLContext:
        key = ("httpx2", *map(os.environ.get, names), *options.values())
        if key not in shared:
            shared[key] = create_of_httpx2(**options)
        return shared[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create_once)
        patch.setattr(httpcore2, "default_ssl_context", create_once_of_httpx2)
        yield


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """Restores what services and commands in the process of a test change: the configuration of logs, and the umask.

    Commands make the new files of their process private.
    """
    import structlog  # noqa: PLC0415

    logging = structlog.get_config() if structlog.is_configured() else None
    umask = os.umask(0o022)
    yield
    os.umask(umask)
    if logging is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**logging)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ForkServer]":
    """The process that forks the services of this test process; started when the first test asks for it."""
    from mnemesh_testkit.mesh.fork_server import ForkServer  # noqa: PLC0415

    with ForkServer(tmp_path_factory.mktemp("fork-server") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def _direct_postgres() -> "Iterator[PostgresServer]":
    from mnemesh_testkit.databases.postgres import running_postgres  # noqa: PLC0415

    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pooled_postgres(_direct_postgres: "PostgresServer") -> "Iterator[PostgresServer]":
    """The PostgreSQL server of this test process, behind a PgBouncer in transaction mode."""
    from mnemesh_testkit.databases.postgres import pgbouncer_program, running_pgbouncer  # noqa: PLC0415

    try:
        program = pgbouncer_program()
    except LookupError as error:
        pytest.skip(str(error))
    with running_pgbouncer(_direct_postgres, program) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> "PostgresServer":
    """A PostgreSQL server of this test process; started when the first test asks for it."""
    is_pooled = request.config.getoption("--pgbouncer")
    server: PostgresServer = request.getfixturevalue("pooled_postgres" if is_pooled else "_direct_postgres")
    return server


@pytest_asyncio.fixture
async def postgres_url(postgres_server: "PostgresServer") -> AsyncIterator[str]:
    """The URL of an empty database for this test."""
    name = await postgres_server.create_database()
    yield postgres_server.url(name)
    await postgres_server.drop_database(name)


@pytest_asyncio.fixture
async def pooled_postgres_url(pooled_postgres: "PostgresServer") -> AsyncIterator[str]:
    """The URL of an empty database for this test, behind a PgBouncer in transaction mode."""
    name = await pooled_postgres.create_database()
    yield pooled_postgres.url(name)
    await pooled_postgres.drop_database(name)


@pytest_asyncio.fixture
async def fake_openai() -> "AsyncIterator[FakeOpenAI]":
    """A fake OpenAI; set its `script`. The mesh of the same test calls it for `openai/…` models."""
    from mnemesh_testkit.fakes.openai import FakeOpenAI  # noqa: PLC0415

    async with FakeOpenAI() as fake:
        yield fake


@pytest_asyncio.fixture
async def fake_anthropic() -> "AsyncIterator[FakeAnthropic]":
    """A fake Anthropic; set its `script`. The mesh of the same test calls it for `anthropic/…` models."""
    from mnemesh_testkit.fakes.anthropic import FakeAnthropic  # noqa: PLC0415

    async with FakeAnthropic() as fake:
        yield fake


@pytest_asyncio.fixture
async def mesh(
    request: pytest.FixtureRequest, tmp_path: Path, fake_openai: "FakeOpenAI", fake_anthropic: "FakeAnthropic"
) -> "AsyncIterator[Mesh]":
    """The whole mesh in this process, wired to both fakes; `@pytest.mark.mesh(proxied=["recall"])` changes it.

    Its databases are in memory. A test that starts a service again or reads its files needs `mesh(in_memory=False)`.
    """
    from mnemesh_testkit.mesh.in_process import Mesh  # noqa: PLC0415

    arguments = {"in_memory": True, **_arguments(request, fake_openai, fake_anthropic)}
    async with Mesh(tmp_path, **arguments) as running:
        yield running


@pytest_asyncio.fixture
async def process_mesh(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fake_openai: "FakeOpenAI",
    fake_anthropic: "FakeAnthropic",
    fork_server: "ForkServer",
) -> "AsyncIterator[ProcessMesh]":
    """The whole mesh as processes, wired to both fakes; `@pytest.mark.mesh(...)` changes it."""
    from mnemesh_testkit.mesh.processes import ProcessMesh  # noqa: PLC0415

    async with ProcessMesh(
        tmp_path, fork_server=fork_server, **_arguments(request, fake_openai, fake_anthropic)
    ) as running:
        yield running


def _arguments(request: pytest.FixtureRequest, openai: "FakeOpenAI", anthropic: "FakeAnthropic") -> dict[str, Any]:
    arguments: dict[str, Any] = {"openai_base_url": openai.base_url, "anthropic_base_url": anthropic.base_url}
    for marker in request.node.iter_markers("mesh"):
        arguments |= marker.kwargs
    return arguments
