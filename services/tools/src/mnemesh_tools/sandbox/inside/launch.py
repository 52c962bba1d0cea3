"""Puts the layers of a plan on, runs the tool inside, and ends everything that is left of it.

Three processes: the outer one stays outside and is the only one that the server talks to; the warden is process 1 of
the sandbox's own pid namespace (without one the outer process is the warden too); the runner runs the tool.
The tool runs in a fork of this interpreter, never in a fresh one: so it needs no right to the interpreter's file.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from dataclasses import replace
from typing import NoReturn

from . import descendants, linux, root, runner, seccomp
from .plan import (
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

_NAMESPACES = {NETWORK_NAMESPACE: linux.CLONE_NEWNET, IPC_NAMESPACE: linux.CLONE_NEWIPC}


def main(text: str) -> NoReturn:
    """Runs the plan given as JSON; facts about the run go to its report pipe, the tool's result to its result pipe."""
    plan = Plan.from_json(text)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != plan.parent_pid:
        os._exit(1)  # the server died before it could be watched
    try:
        _outer(plan)
    except LayerFailed as failure:
        _report(plan, {"layer": failure.layer, "why": failure.why})
    os._exit(0)


def _report(plan: Plan, fact: dict[str, object]) -> None:
    os.write(plan.report_fd, json.dumps(fact).encode() + b"\n")


def _outer(plan: Plan) -> None:
    plan = _with_room_for_neighbours(plan)
    _unshare_users_and_pids(plan)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    go, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        _inside(plan, go)
    os.close(go)
    for number in (0, 1, 2, plan.result_fd):
        os.close(number)
    os.write(ready, b".")
    status = _wait(child)
    if PID_NAMESPACE not in plan.layers:
        descendants.end_all(plan.uid if OWN_UID in plan.layers else None)
        _report(plan, {"status": status})
    elif status is None:
        descendants.end_one(child)


def _with_room_for_neighbours(plan: Plan) -> Plan:
    """Raises the process limit by what runs under this uid already, where the kernel counts that in."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if OWN_UID in plan.layers or (USER_NAMESPACE in plan.layers and release >= (5, 14)):
        return plan
    processes = plan.limits.processes + descendants.count_of_uid(os.getuid())
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


def _wait(child: int) -> int | None:
    """Waits until `child` ends, reaping whatever else falls to this process; None if told to stop before that."""
    while True:
        if signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
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


def _inside(plan: Plan, go: int) -> NoReturn:
    """The first process of the sandbox, up to and including the run of the tool."""
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.read(go, 1) != b".":
            os._exit(1)  # the outer process died before it could be watched
        os.close(go)
        os.setsid()
        _die_first_when_memory_runs_out()
        _unshare_namespaces(plan)
        if PRIVATE_ROOT in plan.layers:
            root.enter(plan)
        if PID_NAMESPACE in plan.layers:
            _guard(plan)
        _restrict(plan)
    except LayerFailed as failure:
        _report(plan, {"layer": failure.layer, "why": failure.why})
        os._exit(0)
    except OSError as error:
        _report(plan, {"layer": "", "why": str(error)})
        os._exit(0)
    os.close(plan.report_fd)
    try:
        runner.run(plan.result_fd, plan.limits.output_chars)
    finally:
        os._exit(0)


def _die_first_when_memory_runs_out() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _unshare_namespaces(plan: Plan) -> None:
    for layer, flag in _NAMESPACES.items():
        if layer in plan.layers:
            try:
                linux.unshare(flag)
            except OSError as error:
                raise LayerFailed(layer, str(error)) from error


def _guard(plan: Plan) -> None:
    """Forks the runner and returns in it; the parent, process 1, waits for it and takes the namespace down."""
    child = os.fork()
    if child == 0:
        return
    for number in (0, 1, 2, plan.result_fd):
        os.close(number)
    if USER_NAMESPACE in plan.layers:
        # The runner has the same uid here, so the warden must be worth nothing and out of reach.
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    status = _wait(child)
    _report(plan, {"status": status})
    os._exit(0)


def _restrict(plan: Plan) -> None:
    """Takes from this process all that a tool must not have."""
    directory = root.WORK_DIRECTORY if PRIVATE_ROOT in plan.layers else plan.work_directory
    os.chdir(directory or "/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    library = _open_library() if PRIVATE_ROOT not in plan.layers else {}
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
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of uid clears it
    _keep_library_readable(library)
    _limit(plan)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        linux.landlock_restrict(ruleset)
    if SECCOMP in plan.layers:
        try:
            seccomp.restrict(among_neighbours=OWN_UID not in plan.layers and PID_NAMESPACE not in plan.layers)
        except (OSError, KeyError) as error:
            raise LayerFailed(SECCOMP, str(error)) from error


def _open_library() -> dict[str, int]:
    return {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in sys.path if os.path.isdir(path)}


def _keep_library_readable(library: dict[str, int]) -> None:
    """Lets imports go through open directories where the way to them is closed to the tool's uid, as below /root."""
    moved: dict[str, str] = {}
    for path, number in library.items():
        if os.access(path, os.R_OK | os.X_OK):
            os.close(number)
        else:
            moved[path] = f"/proc/self/fd/{number}"
    if not moved:
        return
    sys.path[:] = [moved.get(path, path) for path in sys.path]
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        for old, new in moved.items():
            if (places := getattr(module, "__path__", None)) is not None:
                module.__path__ = [
                    new + place.removeprefix(old) if place.startswith(old) else place for place in places
                ]


def _limit(plan: Plan) -> None:
    limits = plan.limits
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1),
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes, limits.processes),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        top = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        resource.setrlimit(kind, (min(soft, top), top))


def _ruleset(plan: Plan) -> int:
    try:
        if linux.landlock_version() == 0:
            raise OSError("this kernel has no Landlock")
        readable = [*SYSTEM_DIRECTORIES, *SYSTEM_FILES, *DEVICES, *plan.python_directories]
        return linux.landlock_ruleset(readable, [place for place in (plan.work_directory, "/dev/null") if place])
    except OSError as error:
        raise LayerFailed(LANDLOCK, str(error)) from error
