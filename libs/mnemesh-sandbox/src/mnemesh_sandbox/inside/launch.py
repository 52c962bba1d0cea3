"""Applies the layers of a plan, executes the tool inside, and kills all processes that it leaves behind.

There are three processes. The outer process stays outside the sandbox; the server communicates only with it. The init
process is process 1 of the pid namespace; without a pid namespace, the outer process has its role. The runner executes
the tool, in a fork of this interpreter: the tool's uid needs no permission on the interpreter's file.
"""

import json
import os
import re
import resource
import select
import signal
import sys
from dataclasses import replace
from typing import NoReturn

from . import descendants, linux, root, runner, seccomp
from .node import Node
from .plan import (
    CGROUP,
    DEVICES,
    IPC_NAMESPACE,
    LANDLOCK,
    NETWORK_NAMESPACE,
    OWN_UID,
    PID_NAMESPACE,
    PRIVATE_ROOT,
    SECCOMP,
    SYSTEM_DIRECTORIES,
    SYSTEM_FILES,
    USER_NAMESPACE,
    LayerFailed,
    Plan,
)
from .watch import Watch

# Pages that Node can write and hardly uses: the addresses of its machine code (512 MB), and the stacks of its threads.
_NODE_BYTES = 640 * 1024 * 1024
_NAMESPACES = {NETWORK_NAMESPACE: linux.CLONE_NEWNET, IPC_NAMESPACE: linux.CLONE_NEWIPC}


def main(text: str) -> NoReturn:
    """Executes the plan in `text`, as JSON. Its report pipe receives the report, its result pipe the tool's result."""
    plan = Plan.from_json(text)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != plan.parent_pid:
        os._exit(1)  # the server ended before the parent-death signal was set
    plan = _with_low_descriptors(plan)
    try:
        _outer(plan)
    except LayerFailed as failure:
        _report(plan, {"layer": failure.layer, "reason": failure.reason})
    os._exit(0)


def _with_low_descriptors(plan: Plan) -> Plan:
    """Returns the plan with the lowest descriptors.

    The server's numbers are high if it has many connections. The table of descriptors of a process begins with the size
    of its parent's, and a large table counts as the memory of sockets.
    """
    return replace(
        plan,
        result_fd=_lowered(plan.result_fd),
        report_fd=_lowered(plan.report_fd),
        claim_fd=None if plan.claim_fd is None else _lowered(plan.claim_fd),
        proxy_fd=None if plan.proxy_fd is None else _lowered(plan.proxy_fd),
        calls_fd=None if plan.calls_fd is None else _lowered(plan.calls_fd),
        replies_fd=None if plan.replies_fd is None else _lowered(plan.replies_fd),
        input_fd=None if plan.input_fd is None else _lowered(plan.input_fd),
    )


def _lowered(number: int) -> int:
    """Moves a descriptor to the lowest number that is free."""
    lowest = os.dup(number)
    os.close(number)
    return lowest


def _report(plan: Plan, fact: dict[str, object]) -> None:
    os.write(plan.report_fd, json.dumps(fact).encode() + b"\n")


def _outer(plan: Plan) -> None:
    plan = _with_counted_processes(plan)
    _unshare_users_and_pids(plan)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    alive, held = os.pipe()  # this process holds the end to write until it ends
    child = os.fork()
    if child == 0:
        os.close(held)
        if plan.claim_fd is not None:
            os.close(plan.claim_fd)
        _inside(plan, alive)
    os.close(alive)
    for number in (1, 2, plan.result_fd, plan.proxy_fd, plan.calls_fd, plan.replies_fd, plan.input_fd):
        if number is not None:
            os.close(number)
    _wait_for_task(child)
    watch = Watch(plan, child if PID_NAMESPACE in plan.layers else None) if plan.is_confined else None
    status = _wait(child, watch, plan)
    if PID_NAMESPACE not in plan.layers:
        descendants.kill_all(plan.uid if OWN_UID in plan.layers else None)
        if status is not None and watch is not None and (limit := watch.left()) is not None:
            _report(plan, {"exceeded": limit})
        _report(plan, {"status": status})
    elif status is None:
        descendants.kill_init(child)


def _with_counted_processes(plan: Plan) -> Plan:
    """Returns the plan with a process limit that allows for other processes of this uid, if the kernel counts them."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if OWN_UID in plan.layers or (USER_NAMESPACE in plan.layers and release >= (5, 14)):
        return plan
    processes = plan.limits.processes + descendants.count_threads(os.getuid())
    return replace(plan, limits=replace(plan.limits, processes=processes))


def _unshare_users_and_pids(plan: Plan) -> None:
    uid, gid = os.getuid(), os.getgid()
    if USER_NAMESPACE in plan.layers:
        try:
            linux.unshare(linux.CLONE_NEWUSER)
            for name, content in (
                ("setgroups", "deny"),
                ("uid_map", f"{plan.uid} {uid} 1"),
                ("gid_map", f"{plan.uid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(content)
        except OSError as error:
            raise LayerFailed(USER_NAMESPACE, str(error)) from error
    if PID_NAMESPACE in plan.layers:
        try:
            linux.unshare(linux.CLONE_NEWPID)
        except OSError as error:
            raise LayerFailed(PID_NAMESPACE, str(error)) from error


def _wait_for_task(child: int) -> None:
    """Waits until the task is written: the server has closed its end of stdin. Until then there is nothing to measure.

    Also returns if the child or the server ends. Closes stdin.
    """
    try:
        ended = os.pidfd_open(child)
    except OSError:
        pass  # the kernel has no such descriptors: the tool is measured from now on
    else:
        waiting = select.poll()
        waiting.register(0, 0)  # for the end of the pipe only
        waiting.register(ended, select.POLLIN)
        waiting.poll()
        os.close(ended)
    os.close(0)


def _wait(child: int, watch: Watch | None = None, plan: Plan | None = None) -> int | None:
    """Waits until `child` ends, and reaps other children.

    Returns None if SIGTERM arrives first, or if `watch` finds that the tool exceeds a limit, which is reported.
    """
    while True:
        if watch is None or plan is None:
            number = signal.sigwait({signal.SIGTERM, signal.SIGCHLD})
        else:
            if (limit := watch.exceeded()) is not None:
                _report(plan, {"exceeded": limit})
                return None
            arrived = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, watch.seconds)
            number = arrived.si_signo if arrived is not None else 0
        if number == signal.SIGTERM:
            return None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == child:
                return status
            if pid == 0:
                break


def _inside(plan: Plan, alive: int) -> NoReturn:
    """Runs in the first process of the sandbox: applies the layers and executes the tool.

    Args:
        plan: The plan.
        alive: The end to read of a pipe that the outer process holds open.
    """
    try:
        _end_with_outer_process(alive)
        os.setsid()
        _prefer_for_oom_kill()
        _join_cgroup(plan)
        _unshare_namespaces(plan)
        variables: dict[str, str] = {}
        if plan.proxy_fd is not None:
            from . import network  # noqa: PLC0415 - most tasks need no module of sockets

            network.offer_listener(plan.proxy_fd)
            variables = network.proxy_environment()
        script = "" if plan.node is None else Node.script()
        if PRIVATE_ROOT in plan.layers:
            root.enter(plan)
        node = None if plan.node is None else Node(plan, plan.node)
        if PID_NAMESPACE in plan.layers:
            _fork_runner(plan)
        packages = _restrict(plan)
    except LayerFailed as failure:
        _report(plan, {"layer": failure.layer, "reason": failure.reason})
        os._exit(0)
    except OSError as error:
        _report(plan, {"layer": "", "reason": str(error)})
        os._exit(0)
    os.close(plan.report_fd)
    try:
        if node is not None:
            node.execute(script, variables)
        if plan.waits:
            runner.warm_up()
        pipes = None if plan.calls_fd is None or plan.replies_fd is None else (plan.calls_fd, plan.replies_fd)
        runner.run(plan.result_fd, plan.limits.output_chars, variables, packages, pipes, plan.input_fd)
    finally:
        os._exit(0)


def _end_with_outer_process(alive: int) -> None:
    """Has the kernel kill this process when the outer one ends; ends it now if the outer one has ended."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel sends no signal for a parent that ended before. Its pipe is closed then.
    closed = select.poll()
    closed.register(alive, 0)
    if closed.poll(0):
        os._exit(1)
    os.close(alive)


def _prefer_for_oom_kill() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _join_cgroup(plan: Plan) -> None:
    if plan.cgroup is None:
        return
    try:
        with open(f"{plan.cgroup}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    except OSError as error:
        raise LayerFailed(CGROUP, str(error)) from error


def _unshare_namespaces(plan: Plan) -> None:
    for layer, flag in _NAMESPACES.items():
        if layer in plan.layers:
            try:
                linux.unshare(flag)
            except OSError as error:
                raise LayerFailed(layer, str(error)) from error


def _fork_runner(plan: Plan) -> None:
    """Forks the runner and returns in it. The parent, process 1, waits for the runner and ends the namespace."""
    child = os.fork()
    if child == 0:
        return
    for number in (0, 1, 2, plan.result_fd, plan.calls_fd, plan.replies_fd, plan.input_fd):
        if number is not None:
            os.close(number)
    if USER_NAMESPACE in plan.layers:
        # The runner has the same uid, so this process must have no capabilities and must not be traceable.
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    status = _wait(child)
    descendants.kill_namespace()
    _report(plan, {"status": status})
    os._exit(0)


def _restrict(plan: Plan) -> list[str]:
    """Removes from this process all privileges that a tool must not have.

    Returns the directories of packages as the tool can reach them.
    """
    directory = root.WORK_DIRECTORY if PRIVATE_ROOT in plan.layers else plan.work_directory
    os.chdir(directory or "/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if not plan.is_confined:
        return plan.package_directories
    library = _open_directories([*sys.path, *plan.package_directories]) if PRIVATE_ROOT not in plan.layers else {}
    ruleset = _ruleset(plan) if LANDLOCK in plan.layers else None
    if OWN_UID in plan.layers:
        try:
            os.setgroups([])
            os.setresgid(plan.uid, plan.uid, plan.uid)
            os.setresuid(plan.uid, plan.uid, plan.uid)
        except OSError as error:
            raise LayerFailed(OWN_UID, str(error)) from error
    if USER_NAMESPACE in plan.layers:
        linux.drop_capabilities()
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of the uid clears it
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # so that the outer process can measure it without CAP_SYS_PTRACE
    moved = _keep_readable(library)
    _limit(plan)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        linux.landlock_restrict(ruleset)
    if SECCOMP in plan.layers:
        try:
            seccomp.restrict(
                shares_processes=OWN_UID not in plan.layers and PID_NAMESPACE not in plan.layers,
                shares_uid=OWN_UID not in plan.layers and PRIVATE_ROOT not in plan.layers,
                shares_files=PRIVATE_ROOT not in plan.layers,
                creates_files=directory is not None,
                connects=plan.proxy_fd is not None,
            )
        except (OSError, KeyError) as error:
            raise LayerFailed(SECCOMP, str(error)) from error
    return [moved.get(path, path) for path in plan.package_directories]


def _open_directories(paths: list[str]) -> dict[str, int]:
    return {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in dict.fromkeys(paths) if os.path.isdir(path)}


def _keep_readable(library: dict[str, int]) -> dict[str, str]:
    """Makes imports use open directories if the tool's uid cannot reach their paths, for example below /root.

    Returns the new path of each such directory.
    """
    moved: dict[str, str] = {}
    for path, number in library.items():
        if os.access(path, os.R_OK | os.X_OK):
            os.close(number)
        else:
            moved[path] = f"/proc/self/fd/{number}"
    if not moved:
        return {}
    sys.path[:] = [moved.get(path, path) for path in sys.path]
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        for old, new in moved.items():
            if (paths := getattr(module, "__path__", None)) is not None:
                module.__path__ = [new + path.removeprefix(old) if path.startswith(old) else path for path in paths]
    return moved


def _limit(plan: Plan) -> None:
    limits = plan.limits
    creates_files = PRIVATE_ROOT in plan.layers or plan.work_directory is not None
    file_bytes = limits.disk_bytes if creates_files else 0
    # Node reserves much more addresses than it uses, so its limit is that of the pages that it can write.
    in_node = plan.node is not None or plan.starts_node
    memory = resource.RLIMIT_DATA if in_node else resource.RLIMIT_AS
    memory_bytes = limits.memory_bytes + (_NODE_BYTES if in_node else 0)
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1),
        (memory, memory_bytes, memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes, limits.processes),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        # With 0, a host that pipes core dumps to a program would still start it, outside the sandbox.
        (resource.RLIMIT_CORE, 1, 1),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        top = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        resource.setrlimit(kind, (min(soft, top), top))


def _ruleset(plan: Plan) -> int:
    try:
        if linux.landlock_version() == 0:
            raise OSError("This kernel has no Landlock.")
        own = (*plan.python_directories, *plan.package_directories, *plan.programs)
        readable = [*SYSTEM_DIRECTORIES, *SYSTEM_FILES, *DEVICES, *own]
        return linux.landlock_ruleset(readable, [path for path in (plan.work_directory, "/dev/null") if path])
    except OSError as error:
        raise LayerFailed(LANDLOCK, str(error)) from error
