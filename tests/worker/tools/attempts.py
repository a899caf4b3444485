"""Code that tries to get out of the sandbox, or to bring down what is around it.

An attempt that got through prints ``ESCAPED``, or the text of a secret, or is seen from outside: see
`surroundings.py`, whose values it finds in its names. None does lasting harm where it gets through, so that a broken
sandbox can be tested.
"""

from __future__ import annotations

from typing import NamedTuple

ESCAPED = "ESCAPED"

CTYPES = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
SYSCALL = CTYPES + "def call(number, *arguments):\n    return libc.syscall(number, *arguments)\n"


class Attempt(NamedTuple):
    """One block of code.

    Attributes:
        code: The block.
        says: What its output must contain: the error it gets.
        harmless: It may succeed, for it does nothing that matters.
        x86_only: Its system calls are of x86-64.
    """

    code: str
    says: str = ""
    harmless: bool = False
    x86_only: bool = False


def _escape(code: str, says: str = "Operation not permitted") -> Attempt:
    return Attempt(f"{code}\nprint('{ESCAPED}')", says)


def _read(path: str, says: str = "Permission denied") -> Attempt:
    return Attempt(f"print(open({path}).read(100000))\nprint('{ESCAPED}')", says)


def _call(numbers: str, *arguments: str) -> Attempt:
    """A system call that Python has no function for: its numbers on x86-64 and aarch64."""
    code = (
        f"import os\nnumber = dict(zip(('x86_64', 'aarch64'), {numbers}))[os.uname().machine]\n{SYSCALL}"
        f"result = call({', '.join(('number', *arguments))})\nerror = ctypes.get_errno()\n"
        f"if result >= 0:\n    print('{ESCAPED}')\nraise OSError(error, os.strerror(error))"
    )
    return Attempt(code, "Operation not permitted")


NETWORK = {
    "tcp": _escape("import socket\nsocket.create_connection(('127.0.0.1', TCP_PORT), 1)"),
    "tcp-listen": _escape("import socket\nsocket.create_server(('127.0.0.1', 0))"),
    "udp": _escape("import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP_PORT))"),
    "raw": _escape("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    "packet": _escape("import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"),
    "netlink": _escape("import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    "vsock": _escape("import socket\nsocket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)"),
    "kernel-crypto": _escape("import socket\nsocket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    "unix": _escape("import socket\nsocket.socket(socket.AF_UNIX).connect(UNIX_SOCKET)"),
    "abstract-unix": _escape("import socket\nsocket.socket(socket.AF_UNIX).connect(ABSTRACT_SOCKET)"),
    "socket-pair": _escape("import socket\nsocket.socketpair()"),
    "names": _escape("import socket\nsocket.getaddrinfo('example.com', 80)", "socket.gaierror"),
    "metadata": _escape(
        "import urllib.request\n"
        "urllib.request.urlopen('http://169.254.169.254/latest/meta-data/iam/security-credentials/', timeout=1)"
    ),
    "raw-system-call": _call("(41, 198)", "2", "1", "0"),
    "socket-by-32-bit-call": Attempt(
        "import ctypes, mmap\n"
        # mov eax, 359 (socket); mov ebx, 2; mov ecx, 1; xor edx, edx; int 0x80; ret
        "code = bytes.fromhex('b867010000' 'bb02000000' 'b901000000' '31d2' 'cd80' 'c3')\n"
        "page = mmap.mmap(-1, 4096, prot=7)\npage.write(code)\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        f"if ctypes.CFUNCTYPE(ctypes.c_int)(address)() >= 0:\n    print('{ESCAPED}')\nraise OSError",
        "SIGSYS",
        x86_only=True,
    ),
    "socket-by-x32-call": Attempt(
        f"{SYSCALL}if call(0x40000000 + 41, 2, 1, 0) >= 0:\n    print('{ESCAPED}')\nraise OSError",
        "SIGSYS",
        x86_only=True,
    ),
}

PROCESSES = {
    "fork": _escape("import os\nif os.fork() == 0:\n    os._exit(0)"),
    "fork-bomb": _escape(
        "import os\nmade = 0\nfor _ in range(64):\n    if os.fork() == 0:\n        os._exit(0)\n    made += 1"
    ),
    "clone": _call("(56, 220)", "17", "0", "0", "0", "0"),
    "clone3": Attempt(
        f"{SYSCALL}import os\narguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17)\n"
        f"result = call(435, arguments, 64)\nif result == 0:\n    os._exit(0)\n"
        f"if result > 0:\n    print('{ESCAPED}')\nraise OSError(ctypes.get_errno(), 'refused')",
        "Errno 38",
    ),
    "subprocess": _escape("import subprocess\nsubprocess.run(['/bin/echo', 'hello'])"),
    "shell": Attempt("import os\nresult = os.system('echo ESCAPED')\nif result:\n    raise OSError(result)", "OSError"),
    "spawn": _escape("import os\nos.posix_spawn('/bin/true', ['true'], {})"),
    "multiprocessing": Attempt(
        f"import multiprocessing\nprint(multiprocessing.get_context('fork').Pool(2).map(len, ['a']), '{ESCAPED}')"
    ),
    "exec": _escape("import os\nos.execv('/bin/echo', ['echo', 'ESCAPED'])"),
    "exec-itself": _escape("import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(\"ESCAPED\")'])"),
    "exec-from-memory": _call("(319, 279)", "b'x'", "0"),
    "execveat": _call("(322, 281)", "0", "b''", "0", "0", "0x1000"),
    "threads": _escape("import threading\nthreading.Thread(target=print).start()", "can't start new thread"),
    "thread-bomb": _escape(
        "import threading, time\nfor _ in range(64):\n    threading.Thread(target=time.sleep, args=(0.2,)).start()",
        "can't start new thread",
    ),
    "new-session": _escape("import os\nos.setsid()"),
    "new-group": _escape("import os\nos.setpgid(0, 0)"),
    "namespaces": _call("(272, 97)", "0x10000000"),
    "join-namespace": _call("(308, 268)", "0", "0"),
}

OTHERS = {
    "kill-worker": _escape("import os\nos.kill(WORKER, 18)"),
    "kill-parent": _escape("import os, signal\nos.kill(os.getppid(), signal.SIGCONT)"),
    "kill-all": _escape("import os\nos.kill(-1, 18)"),
    "kill-group": _escape("import os\nos.killpg(0, 18)"),
    "kill-other": _escape("import os, signal\nos.kill(VICTIM, signal.SIGKILL)"),
    "kill-thread": _call("(200, 130)", "VICTIM", "9"),
    "queue-signal": _call("(129, 138)", "VICTIM", "9", "(ctypes.c_char * 128)()"),
    "kill-by-descriptor": _call("(434, 434)", "VICTIM", "0"),
    "signal-by-pipe": _escape(
        "import fcntl, os, signal\nfcntl.fcntl(1, fcntl.F_SETOWN, VICTIM)\n"
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC)\nos.write(1, b'x')"
    ),
    "signal-by-pipe-ioctl": _escape("import array, fcntl\nfcntl.ioctl(1, 0x8901, array.array('i', [VICTIM]))"),
    "trace": _call("(101, 117)", "16", "VICTIM", "0", "0"),
    "trace-me": _call("(101, 117)", "0", "0", "0", "0"),
    "read-memory": _call("(310, 270)", "WORKER", "0", "0", "0", "0", "0"),
    "write-memory": _call("(311, 271)", "WORKER", "0", "0", "0", "0", "0"),
    "take-descriptor": _call("(438, 438)", "0", "0", "0"),
    "limits-of-others": _escape("import resource\nresource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (0, 0))"),
    "priority-of-others": _escape("import os\nos.setpriority(os.PRIO_PROCESS, VICTIM, 19)"),
    "processors-of-others": _escape("import os\nos.sched_setaffinity(VICTIM, {0})"),
    "own-priority": _escape("import os\nos.nice(-5)"),
    "own-processors": _escape("import os\nos.sched_setaffinity(0, {0})"),
    "real-time": _escape("import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    "raise-limits": _escape(
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)", ""
    ),
}

FILES = {
    "etc-passwd": _read("'/etc/passwd'"),
    "secret": _read("SECRET_FILE"),
    "secret-beside-scratch": _read("'../' + SECRET_BESIDE"),
    "up-and-up": _read("'../' * 20 + SECRET_FILE[1:]"),
    "service-account": _read("'/var/run/secrets/kubernetes.io/serviceaccount/token'", "Error"),
    "own-environment": _read("'/proc/self/environ'"),
    "environment-of-worker": _read("f'/proc/{WORKER}/environ'"),
    "environment-of-first": _read("'/proc/1/environ'"),
    "memory-of-worker": _read("f'/proc/{WORKER}/mem', 'rb'"),
    "memory-of-parent": _read("f'/proc/{__import__(\"os\").getppid()}/mem', 'rb'"),
    "own-memory": _read("'/proc/self/mem', 'rb'"),
    "files-of-worker": _escape("import os\nprint(os.listdir(f'/proc/{WORKER}/fd'))", "Permission denied"),
    "root-of-worker": _escape("import os\nprint(os.listdir(f'/proc/{WORKER}/root/'))", "Permission denied"),
    "working-folder-of-worker": _escape("import os\nprint(os.readlink(f'/proc/{WORKER}/cwd'))", "Permission denied"),
    "inherited-descriptors": Attempt(
        "import os\nfor descriptor in range(5, 1024):\n    try:\n        os.fstat(descriptor)\n"
        "    except OSError:\n        continue\n    print('ESCAPED', descriptor, os.read(descriptor, 1000))\n"
        "raise OSError('none')",
        "none",
    ),
    "symbolic-link": _escape("import os\nos.symlink(SECRET_FILE, 'link')\nprint(open('link').read())"),
    "hard-link": _escape("import os\nos.link(SECRET_FILE, 'link')\nprint(open('link').read())"),
    "rename-in": _escape("import os\nos.rename(VICTIM_FILE, 'mine')\nprint(open('mine').read())", "Error"),
    "rename-out": _escape("import os\nopen('mine', 'w').close()\nos.rename('mine', VICTIM_FILE)", "Error"),
    "path-only": _escape("import os\nos.open(SECRET_FILE, os.O_PATH)"),
    "nameless-mode": _escape("import os\nos.open(VICTIM_FILE, 3)"),
    "truncate-while-reading": _escape("import os\nos.open(VICTIM_FILE, os.O_RDONLY | os.O_TRUNC)"),
    "truncate-in-nameless-mode": _escape("import os\nos.open(VICTIM_FILE, 3 | os.O_TRUNC)"),
    "truncate": _escape("import os\nos.truncate(VICTIM_FILE, 0)"),
    "write": _escape("open(VICTIM_FILE, 'w').write('mine')", "Permission denied"),
    "append": _escape("open(VICTIM_FILE, 'a').write('mine')", "Permission denied"),
    "remove": _escape("import os\nos.remove(VICTIM_FILE)", "Permission denied"),
    "mode": _escape("import os\nos.chmod(VICTIM_FILE, 0o777)"),
    "owner": _escape("import os\nos.chown(VICTIM_FILE, os.getuid(), os.getgid())"),
    "times": _escape("import os\nos.utime(VICTIM_FILE, (0, 0))"),
    "attributes": _escape("import os\nos.setxattr(VICTIM_FILE, 'user.mine', b'x')"),
    "list-root": _escape("import os\nprint(os.listdir('/'))", "Permission denied"),
    "list-temporary": _escape("import os\nprint(os.listdir('..'))", "Permission denied"),
    "new-file-elsewhere": _escape("open('../mine', 'w')", "Permission denied"),
    "new-folder": _escape("import os\nos.mkdir('folder')"),
    "shared-memory": _escape("open('/dev/shm/mine', 'w')", "Permission denied"),
    "shared-memory-module": _escape(
        "from multiprocessing.shared_memory import SharedMemory\nSharedMemory(create=True, size=10)",
        "Permission denied",
    ),
    "system-v-memory": _call("(29, 194)", "0", "4096", "0o1600"),
    "message-queue": _call("(240, 180)", "b'mine'", "0o102", "0o600", "0"),
    "device": _escape("open('/dev/mem', 'rb')", "Error"),
    "terminal": _escape("open('/dev/tty')", "Error"),
    "named-pipe": _escape("import os\nos.mkfifo('pipe')"),
    "device-node": _escape("import os\nos.mknod('device', 0o20600, os.makedev(1, 1))"),
    "file-without-name": _escape("import os\nos.open('.', os.O_TMPFILE | os.O_RDWR)"),
    "watch-files": _call("(294, 26)", "0"),
    "watch-all-files": _call("(300, 262)", "0", "0"),
    "by-handle": _call("(304, 265)", "0", "(ctypes.c_char * 128)()", "0"),
    "openat2": _call("(437, 437)", "-100", "SECRET_FILE.encode()", "(ctypes.c_uint64 * 3)()", "24"),
    "mount": _call("(165, 40)", "b'none'", "b'.'", "b'tmpfs'", "0", "0"),
    "new-mount": _call("(430, 430)", "b'tmpfs'", "0"),
    "change-root": _escape("import os\nos.chroot('.')"),
    "own-package": _escape("import airflow_llmengine", "ModuleNotFoundError"),
    "packages": _escape(
        "import sys, os\nfor folder in [f for f in sys.path if f]:\n    sys.path.append(folder + '/site-packages')\n"
        "import pydantic",
        "ModuleNotFoundError",
    ),
    "list-library": _escape("import os\nprint(os.listdir(os.path.dirname(os.__file__)))", "Permission denied"),
    "write-library": _escape("import os\nopen(os.__file__, 'a')", "Permission denied"),
    "new-file-in-library": _escape("import os\nopen(os.path.dirname(os.__file__) + '/json/mine.py', 'w')", "Error"),
}

KERNEL = {
    "io_uring": _call("(425, 425)", "8", "(ctypes.c_char * 256)()"),
    "bpf": _call("(321, 280)", "0", "(ctypes.c_char * 128)()", "128"),
    "performance-events": _call("(298, 241)", "(ctypes.c_char * 128)()", "0", "-1", "-1", "0"),
    "page-faults": _call("(323, 282)", "1"),
    "keys": _call("(250, 219)", "0", "-3", "1"),
    "add-key": _call("(248, 217)", "b'user'", "b'mine'", "b'x'", "1", "-3"),
    "another-filter": _call("(317, 277)", "1", "0", "0"),
    "another-ruleset": _call("(444, 444)", "0", "0", "1"),
    "process-control": _call("(157, 167)", "4", "1", "0", "0", "0"),
    "personality": _call("(135, 92)", "0xFFFFFFFF"),
    "splice": _call("(275, 76)", "0", "0", "0", "0", "0", "0"),
    "become-root": _escape("import os\nos.setresuid(0, 0, 0)"),
    "capabilities": _call(
        "(126, 91)", "(ctypes.c_uint32 * 2)(0x20080522, 0)", "(ctypes.c_uint32 * 6)(1, 1, 1, 1, 1, 1)"
    ),
    "host-name": _escape("import socket\nsocket.sethostname('mine')"),
    "clock": _escape("import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)"),
    "timer-with-signal": _call("(222, 107)", "0", "0", "(ctypes.c_char * 8)()"),
    "huge-pages": _escape("import mmap\nmmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)"),
    "lock-memory": _call("(149, 228)", "0", "0"),
}

RESOURCES = {
    "memory": _escape("data = []\nfor _ in range(1024):\n    data.append(bytearray(1 << 20))", "MemoryError"),
    "big-list": _escape("data = [0] * (1 << 28)", "MemoryError"),
    "big-number": _escape("data = 1 << (1 << 33)", "MemoryError"),
    "mapped-memory": _escape("import mmap\nmmap.mmap(-1, 1 << 30)", "Cannot allocate memory"),
    "big-file": _escape(
        "with open('big', 'wb') as file:\n    for _ in range(64):\n        file.write(bytes(1 << 20))", "Error"
    ),
    "sparse-file": _escape("import os\nos.truncate(os.open('sparse', 66), 1 << 40)", "File too large"),
    "disk": Attempt(
        "data = bytes(1 << 20)\nfor number in range(192):\n    with open(str(number // 8), 'ab') as file:\n"
        "        file.write(data)\nimport time\ntime.sleep(1)\nprint('ESCAPED')",
        "bytes were written to files",
    ),
    "many-files": Attempt(
        "import time\nfor number in range(2000):\n    open(str(number), 'w').close()\ntime.sleep(1)\nprint('ESCAPED')",
        "files were written",
    ),
    "removed-files": _escape(
        "import os\nopened = []\nfor number in range(64):\n    opened.append(open(str(number), 'wb'))\n"
        "    opened[-1].write(bytes(1 << 10))\n    os.remove(str(number))",
        "Too many open files",
    ),
    "descriptors": _escape("import os\nfor _ in range(64):\n    os.dup(0)", "Too many open files"),
    "pipes": _escape("import os\nos.pipe()"),
    "queued-signals": Attempt(
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\n"
        "for _ in range(1000):\n    os.kill(os.getpid(), signal.SIGRTMIN)\n"
        "pending = 0\nwhile signal.sigtimedwait([signal.SIGRTMIN], 0):\n    pending += 1\n"
        "if pending > 64:\n    print('ESCAPED')",
        harmless=True,
    ),
    "bigger-pipe": _escape("import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)"),
    "output": Attempt("while True:\n    print('x' * 1000)", "bytes were printed"),
    "output-without-lines": Attempt("while True:\n    print('x' * 100, end='')", "bytes were printed"),
    "errors": Attempt("import sys\nwhile True:\n    sys.stderr.write('x' * 1000)", "bytes were printed"),
    "output-by-descriptor": Attempt("import os\nwhile True:\n    os.write(2, b'x' * 65536)", "bytes were printed"),
    "huge-value": Attempt("'x' * 100_000_000", "bytes were printed"),
    "huge-error": Attempt("raise ValueError('x' * 10_000_000)", "bytes were printed"),
    "loop": Attempt("while True:\n    pass", "TimeoutError"),
    "regular-expression": Attempt("import re\nre.match('(a+)+$', 'a' * 64 + 'b')", "TimeoutError"),
    "number": Attempt("9 ** 9 ** 9", "TimeoutError"),
    "sleep": Attempt("import time\ntime.sleep(60)", "TimeoutError"),
    "wait-for-input": Attempt("input()", "EOFError"),
    "recursion": Attempt("def down(n):\n    return down(n + 1)\ndown(0)", "RecursionError"),
    "recursion-without-limit": Attempt(
        "import sys\nsys.setrecursionlimit(10 ** 9)\nclass Down:\n    def __repr__(self):\n        return repr(self)\n"
        "def down(n):\n    return sorted([1], key=lambda _: down(n))\ndown(0)",
        "Error",
    ),
    "deep-code": Attempt("eval('(' * 100_000 + ')' * 100_000)", "Error"),
}

MISCHIEF = {
    "ignore-signals": Attempt(
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        "TimeoutError",
    ),
    "block-signals": Attempt(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True:\n    pass", "TimeoutError"
    ),
    "stop-itself": Attempt("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "TimeoutError"),
    "end-itself": Attempt("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed"),
    "crash": Attempt("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "abort": Attempt("import os\nos.abort()", "SIGABRT"),
    "exit": Attempt("import os\nos._exit(0)", "exit status 0"),
    "close-descriptors": Attempt("import os\nfor number in range(5):\n    os.close(number)", "Exit"),
    "close-all-and-go-on": Attempt("import os\nos.closerange(0, 1024)\nwhile True:\n    pass", "closed its pipes"),
    "close-output": Attempt("import os\nos.close(1)\nos.close(2)", "Exit"),
    "forge-success": Attempt("import os\nos.write(4, b'0')\nwhile True:\n    pass", harmless=True),
    "forge-nonsense": Attempt("import os\nos.write(4, bytes(range(256)) * 16)\nwhile True:\n    pass"),
    "forge-much": Attempt("import os\nwhile True:\n    os.write(4, b'0' * 65536)"),
    "eat-code": Attempt("import os\nos.read(3, 1)", "TimeoutError"),
    "bytes-of-all-kinds": Attempt("import os\nos.write(1, bytes(range(256)) + b'\\xed\\xa0\\x80')", harmless=True),
    "lone-surrogate": Attempt("print('\\ud800')", harmless=True),
    "at-exit": Attempt("import atexit\natexit.register(print, 'ESCAPED')", harmless=True),
    "finalizer": Attempt(
        "class Late:\n    def __del__(self):\n        while True:\n            pass\nlate = Late()\n"
        "import os\nos.write(1, b'')\ndel late",
        "TimeoutError",
    ),
    "trace-function": Attempt(
        "import sys\ndef trace(*_):\n    while True:\n        pass\nsys.settrace(trace)\nsys.setprofile(trace)\n",
        harmless=True,
    ),
    "alarm-afterwards": Attempt(
        "import signal\ndef forever(*_):\n    while True:\n        pass\nsignal.signal(signal.SIGALRM, forever)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
        harmless=True,
    ),
    "break-the-interpreter": Attempt(
        "import builtins, gc, os, sys\nfor module in list(sys.modules.values()):\n    vars(module).clear()", ""
    ),
    "error-that-fails": Attempt(
        "class Bad(BaseException):\n    def __str__(self):\n        raise Bad\n    __repr__ = __str__\nraise Bad", "Bad"
    ),
    "value-that-fails": Attempt("class Bad:\n    def __repr__(self):\n        raise SystemExit(9)\nBad()"),
    "null-in-code": Attempt("print(1)\0", "Error"),
    "lone-surrogate-in-code": Attempt("print('\ud800')", "Error"),
}

ATTEMPTS = {**NETWORK, **PROCESSES, **OTHERS, **FILES, **KERNEL, **RESOURCES, **MISCHIEF}
