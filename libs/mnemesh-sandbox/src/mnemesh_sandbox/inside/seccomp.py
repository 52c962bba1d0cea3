"""A seccomp filter that denies system calls to tools: sockets, IPC, namespaces, mounts, tracing, kernel keys."""

import errno

from . import linux, syscalls

_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

_LOAD = 0x20  # loads the word at offset k of the description of the call
_AND = 0x54
_EQUALS, _ABOVE, _HAS_BITS, _RETURN = 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_DENY, _ABSENT = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_IGNORE = _ERRNO  # the call succeeds without effect

_AF_UNIX, _AF_INET, _SOCK_STREAM, _SOCKET_TYPE = 1, 2, 1, 0xF
_IPPROTO_TCP = 6
_O_CREAT, _O_TRUNC, _O_TMPFILE = 0x40, 0x200, 0x40_0000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x4_0000
_PR_SET_DUMPABLE = 4
# They make the kernel send signals, to any process of the same uid.
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
# Locks of open files. No list shows who holds them.
_F_OFD_SETLK, _F_OFD_SETLKW = 37, 38
# It reports changes in a directory, also in one that cannot be read otherwise.
_F_NOTIFY = 1026
# They enlarge the buffers of a socket, whose memory belongs to no process.
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
# They change attributes of a file that is open for reading, if the uid owns it: flags, version, project, encryption and
# verity.
_FILE_ATTRIBUTES = (0x4008_6602, 0x4008_7602, 0x401C_5820, 0x800C_6613, 0x4080_6685)
# They write into a terminal's input.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_Instruction = tuple[int, int, int, int]
"""The code, the jump if true, the jump if false, and the operand."""


def supported() -> bool:
    """Returns whether the numbers of this machine's system calls are known."""
    return linux.machine() in _ARCHITECTURE


def restrict(
    *, shares_processes: bool, shares_uid: bool, shares_files: bool, creates_files: bool, connects: bool
) -> None:
    """Denies these calls permanently to this process and its future descendants. Requires no_new_privs.

    Args:
        shares_processes: Also denies signals, because the tool shares its uid and its process table with others.
        shares_uid: Also denies to change the attributes of files, because the tool has the uid of the service and sees
            the names of its files.
        shares_files: Also denies to observe files, because the tool sees the names of the host's.
        creates_files: The tool has a directory of its own. Otherwise the calls that create files are denied.
        connects: The tool has a network namespace with a proxy. Otherwise it gets no sockets.
    """
    column = 0 if linux.machine() == "x86_64" else 1
    denied = {
        **syscalls.DENIED,
        **({} if connects else syscalls.CONNECTING),
        **(syscalls.DENIED_IN_SHARED_TABLE if shares_processes else {}),
        **(syscalls.DENIED_WITH_SHARED_UID if shares_uid else {}),
        **(syscalls.DENIED_IN_SHARED_ROOT if shares_files else {}),
        **({} if creates_files else syscalls.DENIED_WITHOUT_DIRECTORY),
    }
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUALS, 1, 0, _ARCHITECTURE[linux.machine()]),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, syscalls.NEWEST),
        (_RETURN, 0, 0, _ABSENT),
    ]
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    for numbers in syscalls.IGNORED.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, _IGNORE)]
    for numbers, rule in _argument_rules(creates_files=creates_files, connects=connects):
        if (number := numbers[column]) is not None:
            program += [(_EQUALS, 0, len(rule) + 1, number), *rule, (_LOAD, 0, 0, _NUMBER)]
    linux.install_filter([*program, (_RETURN, 0, 0, _ALLOW)])


def _argument_rules(*, creates_files: bool, connects: bool) -> list[tuple[syscalls.Numbers, list[_Instruction]]]:
    """Returns the instructions for each call whose arguments decide. A rule that does not return allows the call."""
    shared = _MAP_SHARED | _MAP_ANONYMOUS if creates_files else _MAP_SHARED
    rules: list[tuple[syscalls.Numbers, list[_Instruction]]] = [
        # A filter cannot read the flags of clone3, which a pointer passes. Without clone3, the C library uses clone.
        (syscalls.CLONE3, [(_RETURN, 0, 0, _ABSENT)]),
        (syscalls.CLONE, _deny_bits(0, linux.CLONE_NEWUSER)),
        # Anonymous shared memory and huge pages are memory that a measurement of the processes does not show.
        (syscalls.MMAP, [*_deny_bits(3, _MAP_HUGETLB), *_deny_all_bits(3, shared)]),
        (syscalls.PRCTL, _deny_values(0, _PR_SET_DUMPABLE)),
        (syscalls.FCNTL, _deny_values(1, _F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_NOTIFY, _F_OFD_SETLK, _F_OFD_SETLKW)),
        (syscalls.IOCTL, _deny_values(1, _TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP, *_FILE_ATTRIBUTES)),
        (syscalls.PRLIMIT64, _require_value(0, 0)),
        (syscalls.SETSOCKOPT, _ignore_values(1, _SOL_SOCKET, 2, *_BUFFER_SIZES)),
        # Datagram sockets could send to any address, and asyncio needs a pair of connected streams.
        (syscalls.SOCKETPAIR, [*_require_value(0, _AF_UNIX), *_require_value(1, _SOCK_STREAM, _SOCKET_TYPE)]),
    ]
    if connects:
        socket = syscalls.CONNECTING["socket"]
        stream = [*_require_value(0, _AF_INET), *_require_value(1, _SOCK_STREAM, _SOCKET_TYPE)]
        # Without the others, for which the kernel loads modules: SCTP, MPTCP, SMC.
        rules.append((socket, [*stream, *_require_one_of(2, 0, _IPPROTO_TCP)]))
    if not creates_files:
        creating = _O_CREAT | _O_TRUNC | _O_TMPFILE
        rules += [(syscalls.OPEN, _deny_bits(1, creating)), (syscalls.OPENAT, _deny_bits(2, creating))]
    return rules


def _deny_bits(argument: int, bits: int) -> list[_Instruction]:
    return [_load(argument), (_HAS_BITS, 0, 1, bits), (_RETURN, 0, 0, _DENY)]


def _deny_all_bits(argument: int, bits: int) -> list[_Instruction]:
    return [_load(argument), (_AND, 0, 0, bits), (_EQUALS, 0, 1, bits), (_RETURN, 0, 0, _DENY)]


def _deny_values(argument: int, *values: int) -> list[_Instruction]:
    denials = [one for value in values for one in ((_EQUALS, 0, 1, value), (_RETURN, 0, 0, _DENY))]
    return [_load(argument), *denials]


def _ignore_values(argument: int, value: int, other: int, *values: int) -> list[_Instruction]:
    """Ignores a call if the one argument has the value, and the other one has one of the values."""
    ignored = [one for item in values for one in ((_EQUALS, 0, 1, item), (_RETURN, 0, 0, _IGNORE))]
    return [_load(argument), (_EQUALS, 0, len(ignored) + 1, value), _load(other), *ignored]


def _require_value(argument: int, value: int, mask: int = 0xFFFF_FFFF) -> list[_Instruction]:
    return [_load(argument), (_AND, 0, 0, mask), (_EQUALS, 1, 0, value), (_RETURN, 0, 0, _DENY)]


def _require_one_of(argument: int, *values: int) -> list[_Instruction]:
    """Goes on with the next instruction for each of the values."""
    count = len(values)
    tests = [(_EQUALS, count - index, 0, value) for index, value in enumerate(values)]
    return [_load(argument), *tests, (_RETURN, 0, 0, _DENY)]


def _load(argument: int) -> _Instruction:
    return _LOAD, 0, 0, _ARGUMENTS + 8 * argument
