"""What is around a sandbox and must be as it was: servers, a secret, a file, another process; and what a test looks at.

Needs the standard library alone: it runs in pods too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from airflow_llmengine.worker.tools.code_runner import CodeOutput
from airflow_llmengine.worker.tools.sandbox import SandboxedPython
from tests.worker.tools.attempts import ESCAPED, Attempt

SECRET = "the-secret-of-the-worker"
ENDLESS = 0.3
"""Timeout of attempts that never end, in seconds."""

PATIENCE = 60.0
"""Timeout of all others, in seconds: a machine may be busy."""

VARIABLE = "LLMENGINE_TEST_SECRET"


class Surroundings:
    """A worker's surroundings.

    Args:
        folder: An empty folder, in which the scratch folders are made too.
    """

    def __init__(self, folder: Path) -> None:
        self.scratches = folder / "scratches"
        self.scratches.mkdir()
        self._secret = folder / "home" / ".aws" / "credentials"
        self._secret.parent.mkdir(parents=True)
        self._secret.write_text(SECRET)
        (self.scratches / "secret").write_text(SECRET)
        self._victim_file = folder / "victim"
        self._victim_file.write_text("victim")
        self._victim_file.chmod(0o600)
        self._victim_status = self._victim_file.stat()
        self._unix_path = str(folder / "socket")

    @contextlib.contextmanager
    def stand(self) -> Iterator[None]:
        """They are there meanwhile."""
        with contextlib.ExitStack() as stack:
            self._tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._udp.bind(("127.0.0.1", 0))
            self._unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            # Its path may be longer than such an address can be.
            before = Path.cwd()
            os.chdir(Path(self._unix_path).parent)
            self._unix.bind("socket")
            os.chdir(before)
            self._unix.listen()
            self._abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._abstract_name = f"\0llmengine-{os.getpid()}-{id(self)}"
            self._abstract.bind(self._abstract_name)
            self._abstract.listen()
            for server in (self._tcp, self._udp, self._unix, self._abstract):
                server.setblocking(False)
            self._victim = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
            stack.callback(self._victim.kill)
            with self._secret.open("rb") as secret:
                os.set_inheritable(secret.fileno(), True)
                os.environ[VARIABLE] = SECRET
                stack.callback(os.environ.pop, VARIABLE, None)
                stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
                tempfile.tempdir = str(self.scratches)
                yield

    @property
    def names(self) -> str:
        """Code that gives attempts the names they use."""
        values = {
            "TCP_PORT": self._tcp.getsockname()[1],
            "UDP_PORT": self._udp.getsockname()[1],
            "UNIX_SOCKET": self._unix_path,
            "ABSTRACT_SOCKET": self._abstract_name,
            "SECRET_FILE": str(self._secret),
            "SECRET_BESIDE": "secret",
            "VICTIM_FILE": str(self._victim_file),
            "VICTIM": self._victim.pid,
            "WORKER": os.getpid(),
        }
        return "".join(f"{name} = {value!r}\n" for name, value in values.items())

    def faults(self, attempt: Attempt, output: CodeOutput) -> list[str]:
        """What is wrong after an attempt; nothing, as it should be."""
        found = []
        if ESCAPED in output.text or SECRET in output.text:
            found.append("it got through")
        if not output.failed and not attempt.harmless:
            found.append("it did not fail")
        if attempt.says not in output.text:
            found.append(f"it does not say {attempt.says!r}")
        if len(output.text) > 100_000:
            found.append("its output is too long")
        if any("\ud800" <= character <= "\udfff" for character in output.text):
            found.append("its output is no text")
        return [*found, *self._changed()]

    def _changed(self) -> Iterator[str]:
        for server, receive in ((self._tcp, "accept"), (self._unix, "accept"), (self._abstract, "accept")):
            with contextlib.suppress(BlockingIOError):
                getattr(server, receive)()[0].close()
                yield "a server was reached"
        with contextlib.suppress(BlockingIOError):
            self._udp.recv(1)
            yield "a server was reached"
        if self._victim.poll() is not None or _state(self._victim.pid) == "T":
            yield "another process was ended or stopped"
        if os.getpriority(os.PRIO_PROCESS, self._victim.pid) != os.getpriority(os.PRIO_PROCESS, 0):
            yield "another process's priority was changed"
        status = self._victim_file.stat()
        watched = ("st_mode", "st_uid", "st_nlink", "st_size", "st_mtime_ns")
        if [getattr(status, name) for name in watched] != [getattr(self._victim_status, name) for name in watched]:
            yield "a file was changed"

    async def try_it(self, attempt: Attempt, runner: SandboxedPython) -> list[str]:
        """Run an attempt, and a block after it; gives what is wrong afterwards."""
        named = await runner.run(self.names, PATIENCE)
        if named.failed:
            return [f"its names: {named.text}"]
        endless = attempt.says in ("", "TimeoutError")
        output = await runner.run(attempt.code, ENDLESS if endless else PATIENCE)
        faults = self.faults(attempt, output)
        await runner.forget()
        after = await runner.run("import os\nos.listdir(), 6 * 7", PATIENCE)
        if after.failed or after.text != "([], 42)\n":
            faults.append(f"the next block gives {after.text}")
        return [*faults, output.text[-500:]] if faults else []

    def left_over(self) -> list[str]:
        """What closed sandboxes have left behind: their folders, and processes."""
        found = [f"the folder {path.name}" for path in self.scratches.iterdir() if path.name != "secret"]
        if self.scratches.parent.joinpath("mine").exists():
            found.append("a file outside")
        return [*found, *(f"the process {pid}" for pid in sandbox_processes(str(self.scratches)))]


def sandbox_processes(folder: str) -> list[int]:
    """Supervisors and interpreters whose scratch folder is in this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if folder.encode() in command and b"sandbox_supervisor" in command:
                found.append(int(entry.name))
    return found


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
