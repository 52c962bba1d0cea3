"""Attempts of tools against the kernel, other processes, the memory and the disk of the host.

Each source defines `tool`. A kernel attempt returns the names of those that succeeded.
"""

from mnemesh_sandbox.inside import linux, syscalls


def numbers() -> dict[str, int | None]:
    """Returns the numbers of the system calls that `KERNEL` uses, and of one that does not exist yet."""
    column = 0 if linux.machine() == "x86_64" else 1
    return {**{name: both[column] for name, both in syscalls.DENIED.items()}, "new": 600}


KERNEL = """
def tool(numbers, server, path):
    import ctypes, errno, mmap, os, resource, socket, struct, tempfile
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long

    def call(name, *arguments):
        words = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
        if libc.syscall(ctypes.c_long(numbers[name]), *words) == -1:
            raise OSError(ctypes.get_errno(), name)

    def bind():
        pair = socket.socketpair()
        pair[0].bind("\\0mnemesh-attempt")

    def send_by_path():
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].sendto(b"x", path)

    def send_message_by_path():
        pair = socket.socketpair()
        pair[0].sendmsg([b"x"], [], 0, path)

    def mapping(flags):
        mmap.mmap(-1, 1 << 21, flags=flags)

    def control(command, argument):
        import fcntl
        fcntl.fcntl(os.pipe()[0], command, argument)

    def larger_buffers():
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one = socket.socketpair()[0]
            before = one.getsockopt(socket.SOL_SOCKET, option)
            one.setsockopt(socket.SOL_SOCKET, option, 1 << 16)
            if one.getsockopt(socket.SOL_SOCKET, option) != before:
                return
        raise OSError("ignored")

    def observe():
        # No environment is there: a directory that leads to one exists in the sandbox as well, empty.
        if libc.inotify_add_watch(libc.inotify_init(), b"/media", 0xFFF) < 0:
            raise OSError("denied")

    def watch_directory():
        import fcntl
        fcntl.fcntl(os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, 2)

    attempts = {
        "socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "bind": bind,
        "socketpair datagram": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
        "socketpair seqpacket": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
        "send by path": send_by_path,
        "send message by path": send_message_by_path,
        "memfd": lambda: call("memfd_create", b"x", 0),
        "vmsplice": lambda: call("vmsplice", os.pipe()[1], b"\\0" * 16, 0, 0),
        "shared anonymous memory": lambda: mapping(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        "huge pages": lambda: mapping(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000),
        "/dev/zero": lambda: open("/dev/zero", "rb").close(),
        "shmget": lambda: call("shmget", 0, 4096, 0o1600),
        "semget": lambda: call("semget", 0, 1, 0o1600),
        "msgget": lambda: call("msgget", 0, 0o1600),
        "mq_open": lambda: call("mq_open", b"mnemesh", os.O_CREAT | os.O_RDWR, 0o600, 0),
        "keyring": lambda: call("add_key", b"user", b"mnemesh", b"x", 1, -3),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, server, 19),
        "priority of the uid": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
        "affinity": lambda: os.sched_setaffinity(server, {0}),
        "scheduler": lambda: call("sched_setattr", server, struct.pack("<IIQiIQQQ", 48, 3, 0, 0, 0, 0, 0, 0), 0),
        "io priority": lambda: call("ioprio_set", 1, server, 3 << 13),
        "limits": lambda: resource.prlimit(server, resource.RLIMIT_NOFILE, (10, 10)),
        "signal": lambda: os.kill(server, 0),
        "signal of the kernel": lambda: control(8, server),
        "lock without an owner": lambda: control(37, struct.pack("hhqqi4x", 0, 0, 0, 1, 0)),
        "buffers of sockets": larger_buffers,
        "files of the host": observe,
        "directory of the host": watch_directory,
        "trace": lambda: call("ptrace", 16, server, 0, 0),
        "memory": lambda: open(f"/proc/{server}/mem", "rb"),
        "environment": lambda: open(f"/proc/{server}/environ", "rb").read(),
        "measurement": lambda: libc.prctl(4, 0, 0, 0, 0) == 0 or os.stat("/gone"),
        "preference of the kernel": lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"0"),
        "namespace": lambda: call("unshare", 0x10000000),
        "io_uring": lambda: call("io_uring_setup", 1, b"\\0" * 120),
        "new system calls": lambda: call("new", 0) if ctypes.get_errno() != errno.ENOSYS else os.stat("/gone"),
    }
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        done.append(name)
    return done
"""

# The attributes of a file that the tool must not reach, and of one that it may only read.
ATTRIBUTES = """
def tool(path, package):
    import ctypes, fcntl, os, struct
    libc = ctypes.CDLL(None, use_errno=True)
    opened = os.open(package, os.O_RDONLY)

    def call(number, *arguments):
        if libc.syscall(ctypes.c_long(number), *arguments) == -1:
            raise OSError(ctypes.get_errno(), "denied")

    attempts = {
        "flags": lambda: fcntl.ioctl(opened, 0x40086602, struct.pack("l", 0x40)),
        "newest chmod": lambda: call(452, -100, path.encode(), 0o666, 0),
        "mode of a directory": lambda: os.chmod(os.path.dirname(path), 0o777),
        "link": lambda: os.utime(path, (1, 1), follow_symlinks=False),
    }
    for name, target in (("path", path), ("package", package), ("descriptor", opened)):
        attempts[f"mode of {name}"] = lambda target=target: os.chmod(target, 0o666)
        attempts[f"owner of {name}"] = lambda target=target: os.chown(target, -1, os.getgid())
        attempts[f"times of {name}"] = lambda target=target: os.utime(target, (1, 1))
        attempts[f"attribute of {name}"] = lambda target=target: os.setxattr(target, "user.mnemesh", b"x")
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        done.append(name)
    return done
"""

# The directories of the host that any user can write.
WRITE_ANYWHERE = """
def tool():
    import os
    done = []
    for parent in (".", "/tmp", "/var/tmp", "/dev/shm", "/run/lock"):
        for attempt in (
            lambda path: open(path, "w"),
            os.mkdir,
            lambda path: os.mkfifo(path),
            lambda path: os.symlink("x", path),
            lambda path: os.close(os.open(parent, os.O_TMPFILE | os.O_RDWR)),
        ):
            path = os.path.join(parent, f"left-{os.getpid()}")
            try:
                attempt(path)
                done.append(path)
            except OSError:
                pass
    return done
"""

# A file that no name shows, and then one with a name.
MANY_BYTES = """
def tool():
    import os
    files = []
    for number in range(100):
        for name in (f"gone{number}", f"file{number}"):
            files.append(open(name, "wb"))
            if name.startswith("gone"):
                os.unlink(name)
            files[-1].write(b"x" * 2_000_000)
            files[-1].flush()
    return 400
"""

MANY_FILES = """
def tool():
    import os
    for number in range(60_000):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    return 60_000
"""

DEEP_TREE = """
def tool():
    import os
    for number in range(3_000):
        os.mkdir("d")
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY))
        os.chdir("d")
    for _ in range(20):
        os.chmod("../d", 0)
        os.chdir("..")
    return 3_000
"""

# Each process stays within its own limit.
MEMORY_OF_PROCESSES = """
def tool():
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1) * 60_000_000)
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
"""

# The buffers of sockets are memory of the kernel, which no process shows.
MEMORY_OF_SOCKETS = """
def tool():
    import os, socket, time
    for _ in range(20):
        if os.fork() == 0:
            kept = [socket.socketpair() for _ in range(28)]
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
"""

# A connection whose other end does not read.
BUFFERS_OF_A_CONNECTION = """
def tool():
    import os, select, socket
    host, port = os.environ["https_proxy"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        connection.setblocking(False)
        sent = 0
        while select.select([], [connection], [], 0.3)[1]:
            sent += connection.send(b"x" * 65_536)
    return sent
"""

# So are locks on files.
MEMORY_OF_LOCKS = """
def tool():
    import fcntl, os, time
    for number in range(10):
        file = os.open(str(number), os.O_CREAT | os.O_RDWR)
        for place in range(2_000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
    time.sleep(60)
"""

# A descendant that no longer belongs to the session, and whose parent-death signal is gone.
SURVIVOR = """
def tool():
    import ctypes, os, time
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
    print("begun", flush=True)
    time.sleep(100)
"""
