"""A seccomp filter that denies system calls to tools: sockets, namespaces, mounts, tracing, kernel keys."""

from __future__ import annotations

import errno

from . import linux

_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT = 0x4000_0000

# The number of each call on x86_64 and on aarch64, or None if the architecture does not have it.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "seccomp": (317, 277),
}
# A tool that shares its uid and its process table with the server must not signal or limit other processes.
_DENIED_IN_SHARED_TABLE: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_IOCTL = (16, 29)
_TIOCSTI = 0x5412

_LOAD = 0x20  # loads the word at offset k of the description of the call
_EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24


def supported() -> bool:
    """Returns whether the numbers of this machine's system calls are known."""
    return linux.machine() in _ARCHITECTURE


def restrict(*, shares_processes: bool) -> None:
    """Denies these calls permanently to this process and its future descendants. Requires no_new_privs.

    Args:
        shares_processes: Also denies signals, because the tool shares its uid and its process table with others.
    """
    column = 0 if linux.machine() == "x86_64" else 1
    denied = {**_DENIED, **(_DENIED_IN_SHARED_TABLE if shares_processes else {})}
    deny, absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    program = [(_LOAD, 0, 0, _ARCH), (_EQUALS, 1, 0, _ARCHITECTURE[linux.machine()]), (_RETURN, 0, 0, deny)]
    program += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, deny)]
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, deny)]
    # A filter cannot read the flags of clone3, which a pointer passes. Without clone3, the C library uses clone.
    program += [(_EQUALS, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, absent)]
    program += [(_EQUALS, 0, 3, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    program += [(_HAS_BITS, 0, 1, linux.CLONE_NEWUSER), (_RETURN, 0, 0, deny), (_LOAD, 0, 0, _NUMBER)]
    program += [(_EQUALS, 0, 3, _IOCTL[column]), (_LOAD, 0, 0, _SECOND_ARGUMENT)]
    program += [(_EQUALS, 0, 1, _TIOCSTI), (_RETURN, 0, 0, deny), (_RETURN, 0, 0, _ALLOW)]
    linux.install_filter(program)
