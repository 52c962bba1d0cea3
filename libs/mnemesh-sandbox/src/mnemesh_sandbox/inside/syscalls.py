"""The numbers of the system calls that the seccomp filter denies, on x86_64 and on aarch64."""

Numbers = tuple[int | None, int | None]
"""The number of a call on x86_64 and on aarch64. None: the architecture does not have the call."""

# Calls with a higher number are newer than this table. They answer ENOSYS, as on an older kernel.
NEWEST = 462

DENIED: dict[str, Numbers] = {
    # Sockets: socketpair is the only way to a socket, and only to a pair of connected streams. See also CONNECTING.
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendmmsg": (307, 269),
    "recvmmsg": (299, 243),
    # Memory that no limit of a process counts.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    # System V IPC and POSIX message queues, which outlive the processes.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    # Kernel keys.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Other processes: tracing, scheduling and memory placement.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
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
    "statmount": (457, 457),
    "listmount": (458, 458),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # Interfaces of the kernel with a large attack surface.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "seccomp": (317, 277),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ioperm": (173, None),
    "iopl": (172, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    # Administration.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "personality": (135, 92),
}
# A tool without network access gets no sockets. One with access gets streams of IPv4, in its own network namespace.
CONNECTING: dict[str, Numbers] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "sendmsg": (46, 211),
}
# A tool that shares its uid and its process table with the service must not signal other processes.
DENIED_IN_SHARED_TABLE: dict[str, Numbers] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# A tool that shares its uid with the service owns the service's files, as far as the kernel knows. Landlock does not
# prevent a change of their attributes, by path or by the descriptor of a file that the tool can only read.
DENIED_WITH_SHARED_UID: dict[str, Numbers] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
# A tool without a directory of its own must not create files.
DENIED_WITHOUT_DIRECTORY: dict[str, Numbers] = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "truncate": (76, 45),
    "openat2": (437, 437),
}
# A tool that sees the names of the host's files must not observe them; Landlock does not prevent it.
DENIED_IN_SHARED_ROOT: dict[str, Numbers] = {
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
}
# These make the host write all of its files. They succeed without effect.
IGNORED: dict[str, Numbers] = {
    "sync": (162, 81),
    "syncfs": (306, 267),
}
# Calls that are denied for some arguments only.
CLONE: Numbers = (56, 220)
CLONE3: Numbers = (435, 435)
FCNTL: Numbers = (72, 25)
IOCTL: Numbers = (16, 29)
MMAP: Numbers = (9, 222)
OPEN: Numbers = (2, None)
OPENAT: Numbers = (257, 56)
PRCTL: Numbers = (157, 167)
PRLIMIT64: Numbers = (302, 261)
SETSOCKOPT: Numbers = (54, 208)
SOCKETPAIR: Numbers = (53, 199)
