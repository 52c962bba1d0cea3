"""The isolation of tools: the files, processes, network and system calls that they cannot reach."""

import asyncio
import os
import socket
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from mnemesh_sandbox import Level, Sandbox, SandboxSettings, Task, process
from mnemesh_sandbox.inside import plan as layer
from mnemesh_testkit.timeouts import scaled

from .conftest import every_profile
from .support import Run, source_of, value_of


async def test_environment_contains_only_the_variables_of_the_call(sandbox: Sandbox) -> None:
    body = """
    import os
    try:
        started_with = open('/proc/self/environ').read()
    except OSError:
        started_with = ''
    return [dict(os.environ), started_with]
    """
    task = Task(source_of(body), "tool", {}, {"TOKEN": "a=b\n'c'"})
    environment, started_with = value_of(await sandbox.run(task, scaled(60)))
    assert environment.pop("HOME").startswith("/")
    assert (environment, started_with) == ({"TOKEN": "a=b\n'c'"}, "")


async def test_a_tool_has_a_home_that_it_can_write(sandbox: Sandbox) -> None:
    body = """
    import os
    from pathlib import Path
    (Path.home() / "note").write_text("kept")
    return [Path("~/note").expanduser().read_text(), os.path.expanduser("~") == os.getcwd()]
    """
    assert value_of(await sandbox.run(Task(source_of(body), "tool"), scaled(60))) == ["kept", True]


async def test_errors_and_traces_show_no_path_of_the_host(sandbox: Sandbox) -> None:
    body = """
    import json, sys
    try:
        json.loads("{")
    except ValueError as error:
        raise RuntimeError(f"in {json.__file__}") from error
    """
    outcome = await sandbox.run(Task(source_of(body), "tool"), scaled(60))
    assert outcome.text == "Error executing function tool: RuntimeError: in <python>/json/__init__.py"
    assert "<python>/json/decoder.py" in outcome.stderr
    assert sysconfig.get_path("stdlib") not in outcome.stderr
    assert '"<tool tool>"' in outcome.stderr


@every_profile
async def test_server_environment_cannot_be_read(run: Run) -> None:
    """Neither through /proc of any process, nor its memory or open files."""
    body = """
    import glob, os
    pids = {str(server), *(p.split('/')[2] for p in glob.glob('/proc/[0-9]*'))} - {str(os.getpid())}
    read = []
    for pid in pids:
        for name in ('environ', 'mem', 'maps', 'fd'):
            path = f'/proc/{pid}/{name}'
            try:
                os.listdir(path) if name == 'fd' else open(path, 'rb').read(1)
                if name != 'environ' or open(path, 'rb').read():
                    read.append(path)
            except OSError:
                pass
    return read
    """
    assert value_of(await run(source_of(body, "server"), server=os.getpid())) == []


@every_profile
async def test_files_of_others_cannot_be_read_or_written(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    secret = tmp_path / "tools.db"
    secret.write_text("secret")
    body = """
    import os, pathlib
    done = []
    for path in paths:
        for attempt in (open, os.listdir, lambda p: open(p, 'w'), lambda p: open(p + '.new', 'w')):
            try:
                attempt(path)
                done.append(path)
            except OSError:
                pass
    return done
    """
    paths = [str(secret), str(tmp_path), "/etc/shadow", str(Path(__file__)), str(Path(__file__).parent)]
    assert value_of(await run(source_of(body, "paths"), paths=paths)) == []
    assert secret.read_text() == "secret"


@every_profile
async def test_system_and_interpreter_are_read_only(run: Run) -> None:
    body = """
    import json, os, sys
    done = []
    for path in ('/', '/usr', '/usr/bin', '/dev', '/etc', '/var/tmp', os.path.dirname(json.__file__)):
        try:
            open(os.path.join(path, 'left'), 'w')
            done.append(path)
        except OSError:
            pass
    return done
    """
    assert value_of(await run(source_of(body))) == []


@pytest.mark.parametrize("parent", ["/tmp", "/dev/shm"])
async def test_interpreter_below_a_private_directory_disables_no_layer(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, parent: str
) -> None:
    """The sandbox has its own /tmp and /dev/shm, and the Python environment below those of the host."""
    supported = (await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))).isolation
    below = TemporaryDirectory(dir=parent)
    request.addfinalizer(below.cleanup)
    Path(below.name).chmod(0o755)
    library = Path(below.name) / "environment" / "lib"
    library.mkdir(parents=True)
    (library / "marker").write_text("seen")
    known = process.python_directories()
    monkeypatch.setattr(process, "python_directories", lambda: [*known, str(library)])
    sandbox = await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))
    assert sandbox.isolation.layers == supported.layers
    body = """
    import os, tempfile
    tempfile.TemporaryFile().write(b"x")
    return [open(path).read(), *os.listdir(".")]
    """
    outcome = await sandbox.run(Task(source_of(body, "path"), "tool", {"path": str(library / "marker")}), scaled(60))
    assert value_of(outcome) == ["seen"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems")
async def test_file_system_that_is_mounted_below_a_visible_directory_is_read_only(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    volume = tmp_path / "library" / "a volume" / "inner"
    volume.mkdir(parents=True)
    for parent in (volume, *volume.parents[:5]):
        parent.chmod(0o755)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", str(volume)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this host does not allow mounts")
    request.addfinalizer(lambda: subprocess.run(["umount", str(volume)], check=True))
    (volume / "file").write_text("before")
    (volume / "file").chmod(0o666)
    known = process.python_directories()
    monkeypatch.setattr(process, "python_directories", lambda: [*known, str(tmp_path / "library")])
    sandbox = await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))
    body = """
    import os
    done = []
    for name in ('file', 'new'):
        try:
            open(os.path.join(volume, name), 'w')
            done.append(name)
        except OSError:
            pass
    return [open(os.path.join(volume, 'file')).read(), *done]
    """
    task = Task(source_of(body, "volume"), "tool", {"volume": str(volume)})
    assert value_of(await sandbox.run(task, scaled(60))) == ["before"]
    assert [path.name for path in volume.iterdir()] == ["file"]


async def test_tool_has_no_descriptors_of_the_service(run: Run) -> None:
    """It has its standard streams and the pipe of the result; without a private root also directories of modules."""
    body = """
    import os, stat
    kinds = []
    for number in range(256):
        try:
            kinds.append(stat.S_IFMT(os.fstat(number).st_mode))
        except OSError:
            continue
    return [kinds.count(stat.S_IFIFO), len([kind for kind in kinds if kind not in (stat.S_IFIFO, stat.S_IFDIR)])]
    """
    assert value_of(await run(source_of(body))) == [4, 0]


async def test_crash_dumps_no_core(run: Run) -> None:
    """A program of the host that receives core dumps is started unless the limit is 1."""
    body = """
    import os, resource
    child = os.fork()
    if child == 0:
        os.abort()
    _, status = os.waitpid(child, 0)
    return [os.WIFSIGNALED(status), os.WCOREDUMP(status), os.listdir("."), *resource.getrlimit(resource.RLIMIT_CORE)]
    """
    assert value_of(await run(source_of(body))) == [True, False, [], 1, 1]


async def test_standard_library_works_inside(run: Run) -> None:
    """Also modules of packages that were loaded before their path became unreachable, and extension modules."""
    body = """
    import asyncio, csv, datetime, email.mime.text, hashlib, json.tool, re, sqlite3, subprocess, tempfile, zoneinfo
    with tempfile.TemporaryDirectory() as directory:
        open(directory + '/a', 'w').write('x')
    con = sqlite3.connect(':memory:')
    out = subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout
    return [con.execute('select 1 + 1').fetchone()[0], out, hashlib.sha256(b'').hexdigest()[:4]]
    """
    assert value_of(await run(source_of(body))) == [2, "child\n", "e3b0"]


@every_profile
async def test_tool_has_its_own_uid_and_no_privileges(run: Run, sandbox: Sandbox) -> None:
    body = """
    import os
    status = {}
    try:
        status = dict(line.split(':', 1) for line in open('/proc/self/status'))
    except OSError:
        pass
    shown = [status.get(name, default).strip() for name, default in (('CapEff', '0'), ('NoNewPrivs', '1'))]
    return [os.getuid(), os.getgid(), os.getgroups(), *shown]
    """
    uid, gid, groups, capabilities, no_new_privileges = value_of(await run(source_of(body)))
    assert uid != 0
    assert int(capabilities, 16) == 0
    assert no_new_privileges == "1"
    if {layer.OWN_UID, layer.USER_NAMESPACE} & sandbox.isolation.layers:
        assert 61_000 <= uid < 62_000
        assert gid == uid
    if os.geteuid() == 0:
        assert groups == []


@every_profile
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
async def test_network_is_out_of_reach(run: Run, family: str) -> None:
    """A listener on loopback is unreachable, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = """
        import socket
        try:
            s = socket.socket(getattr(socket, family))
            s.settimeout(2)
            ip = {'AF_INET': ('127.0.0.1', port), 'AF_INET6': ('::1', port)}
            s.connect({**ip, 'AF_UNIX': '\\0x', 'AF_NETLINK': (0, 0)}[family])
        except OSError as error:
            return 'refused'
        return 'connected'
        """
        outcome = await run(source_of(body, "family, port"), family=family, port=listener.getsockname()[1])
        assert outcome.text == "refused"


@pytest.mark.parametrize(
    "body",
    [
        "import ctypes; return ctypes.CDLL(None).unshare(0x10000000)",
        "import ctypes; return ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "import ctypes; return ctypes.CDLL(None).ptrace(0, 0, 0, 0)",
        "import ctypes; return ctypes.CDLL(None).syscall(425, 8, 0)",
        "import ctypes; return ctypes.CDLL(None).setuid(0)",
        "import os\ntry: os.kill(server, 0)\nexcept OSError: return -1\nreturn 0",
    ],
)
async def test_dangerous_system_calls_are_denied(run: Run, body: str) -> None:
    assert (
        await run(
            source_of(body, "server=0" if "server" not in body else "server"),
            **({"server": os.getpid()} if "server" in body else {}),
        )
    ).text == "-1"


async def test_concurrent_executions_are_separate(sandbox: Sandbox) -> None:
    """Each has its own directory and processes, and its own uid if the server can change uids."""
    body = """
    import os, time
    open('mine', 'w').write(str(number))
    time.sleep(0.2)
    return [number, open('mine').read(), os.getuid()]
    """
    tasks = [Task(source_of(body, "number"), "tool", {"number": number}) for number in range(6)]
    results = [
        value_of(outcome) for outcome in await asyncio.gather(*(sandbox.run(task, scaled(60)) for task in tasks))
    ]
    assert [(number, text) for number, text, _ in results] == [(number, str(number)) for number in range(6)]
    if layer.OWN_UID in sandbox.isolation.layers:
        assert len({uid for *_, uid in results[:4]}) == 4
