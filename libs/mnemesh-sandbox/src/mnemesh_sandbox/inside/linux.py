"""System calls for which Python 3.11 has no function."""

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

# These system calls have the same numbers on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x2008_0522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def machine() -> str:
    """Returns the name of the architecture, such as `x86_64`."""
    return os.uname().machine


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    _checked(_libc.prctl(option, first, second, 0, 0), f"prctl {option}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc.mount(encoded[0], encoded[1], encoded[2], flags, data.encode()), f"mount {target}")


def unmount(target: str) -> None:
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT.get(machine())
    if number is None:
        raise OSError(f"The number of pivot_root is not known on {machine()}.")
    _checked(_libc.syscall(ctypes.c_long(number), os.fsencode(new), os.fsencode(old)), "pivot_root")


def drop_capabilities() -> None:
    """Drops every capability of the calling thread, also those in a user namespace."""
    number = _CAPSET.get(machine())
    if number is None:
        raise OSError(f"The number of capset is not known on {machine()}.")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.syscall(ctypes.c_long(number), header, (ctypes.c_uint32 * 6)()), "capset")


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


# Access rights of Landlock by the version of its interface that added them.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_READ = 0b1101  # execute, read a file, read a directory
_FILE_ONLY = 0b111 | 1 << 14 | 1 << 15  # the rights that a rule for a file can have
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def landlock_version() -> int:
    """Returns the version of Landlock's interface, or 0 if the kernel has none."""
    return int(max(0, _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), 1)))


def landlock_ruleset(readable: list[str], writable: list[str]) -> int:
    """Returns the descriptor of a Landlock ruleset that allows access to these trees only.

    It also denies TCP from version 4 on, and signals to processes outside from version 6 on.
    """
    version = landlock_version()
    rights = sum(right for since, right in _FILE_RIGHTS.items() if since <= version)
    attributes = _Ruleset(
        rights, 0b11 if version >= 4 else 0, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    create, add = ctypes.c_long(_LANDLOCK_CREATE_RULESET), ctypes.c_long(_LANDLOCK_ADD_RULE)
    ruleset = _checked(_libc.syscall(create, ctypes.byref(attributes), ctypes.c_size_t(size), 0), "landlock")
    for path, allowed in [*((p, _READ) for p in readable), *((p, rights) for p in writable)]:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        mask = rights & allowed if os.path.isdir(path) else rights & allowed & _FILE_ONLY
        rule = _PathBeneath(mask, parent)
        _checked(_libc.syscall(add, ctypes.c_int(ruleset), 1, ctypes.byref(rule), 0), f"landlock {path}")
        os.close(parent)
    return ruleset


def landlock_restrict(ruleset: int) -> None:
    """Applies the ruleset permanently to this process and its future descendants. Requires no_new_privs."""
    _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(ruleset), 0), "landlock")
    os.close(ruleset)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction))]


def install_filter(instructions: list[tuple[int, int, int, int]]) -> None:
    """Applies a seccomp filter permanently to this process.

    Each instruction is (code, jump if true, jump if false, operand).
    """
    array = (_Instruction * len(instructions))(*(_Instruction(*one) for one in instructions))
    program = _Program(len(instructions), array)
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program))
