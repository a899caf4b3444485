"""Where the kernel or the pod lacks something, there is no sandbox, and one sentence says what to do."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_llmengine.worker.tools import sandbox_seccomp
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox import SandboxedPython, require_sandbox, require_sandbox_of
from airflow_llmengine.worker.tools.sandbox_limits import DEFAULT_LIMITS
from tests.worker.tools.sandboxes import needs_sandbox
from tests.worker.tools.test_sandbox import children, of_process, run

ROOT = Path(__file__).parents[3]

REFUSED = """
import asyncio, ctypes, os, sys
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox import require_sandbox
from airflow_llmengine.worker.tools import sandbox_seccomp as seccomp
from airflow_llmengine.worker.tools.sandbox import SandboxedPython
from airflow_llmengine.worker.tools.sandbox_syscalls import check, libc
number, first_argument, error, runs = map(int, sys.argv[1:])
async def run():
    runner = SandboxedPython()
    try:
        print(await runner.run("1", 60))
    finally:
        await runner.close()
instruction = seccomp._Instruction
filter = [
    instruction(seccomp.LOAD, seccomp.NUMBER_OFFSET),
    instruction(seccomp.JUMP_EQUAL, number, if_false=3),
    instruction(seccomp.LOAD, seccomp.ARGUMENTS_OFFSET),
    instruction(seccomp.JUMP_EQUAL, first_argument, if_false=1),
    instruction(seccomp.RETURN, seccomp.ERROR | error),
    instruction(seccomp.RETURN, seccomp.ALLOW),
]
code = b"".join(each.pack() for each in filter)
program = seccomp._Program(len(filter), code)
check(libc.prctl(38, ctypes.c_ulong(1), 0, 0, 0))
check(libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program), 0, 0))
try:
    asyncio.run(run()) if runs else require_sandbox()
except SandboxUnavailableError as error:
    print(error)
"""
"""A worker in a pod whose profile refuses a system call when its first argument is so."""


def refusal(number: int, first_argument: int, error: int, *, runs: bool = False) -> str:
    arguments = [str(number), str(first_argument), str(error), str(int(runs))]
    end = subprocess.run([sys.executable, "-c", REFUSED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert end.stderr == ""
    return end.stdout


def landlock_create_ruleset(error: int) -> str:
    return refusal(444, 0, error)


@needs_sandbox
def test_a_kernel_without_landlock_is_said() -> None:
    assert landlock_create_ruleset(errno.ENOSYS) == (
        "The kernel's Landlock, which shuts code off from files, can't be used: take a node with Linux 5.13 or newer,"
        " and a container runtime whose seccomp profile RuntimeDefault lets landlock_create_ruleset through (Function"
        " not implemented).\n"
    )


@needs_sandbox
def test_landlock_that_is_switched_off_is_said() -> None:
    assert landlock_create_ruleset(errno.EOPNOTSUPP) == (
        "The kernel's Landlock, which shuts code off from files, is switched off: add landlock to the kernel's"
        " parameter lsm on that node (Operation not supported).\n"
    )


@needs_sandbox
def test_a_pod_that_refuses_filters_is_said() -> None:
    number = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
    assert refusal(number, 22, errno.EPERM).startswith(
        "The kernel refuses filters of system calls (Operation not permitted): it needs seccomp, and the pod a profile"
    )


@needs_sandbox
@pytest.mark.parametrize("runs", [False, True])
def test_a_pod_without_room_for_one_more_process_is_said_and_is_no_output_of_the_code(runs: bool) -> None:
    number, flags = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x01200011  # clone, as fork calls it
    assert refusal(number, flags, errno.EAGAIN, runs=runs) == (
        "An interpreter for a completion's code can't be started (Resource temporarily unavailable).\n"
    )


LIMITED = """
import resource, sys
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox import require_sandbox
kind, most = map(int, sys.argv[1:])
resource.setrlimit(kind, (most, most))
try:
    require_sandbox()
except SandboxUnavailableError as error:
    print(error)
"""
"""A worker in a pod whose own limit is low."""


def limited(kind: int, most: int) -> str:
    # As root a limit can be raised again, unless the capability is gone.
    drop = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"] if os.geteuid() == 0 else []
    arguments = [*drop, sys.executable, "-c", LIMITED, str(kind), str(most)]
    end = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert end.stderr == ""
    return end.stdout


@needs_sandbox
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv isn't installed")
@pytest.mark.parametrize(
    ("kind", "most"),
    [(resource.RLIMIT_AS, 400 * 2**20), (resource.RLIMIT_FSIZE, 2**20), (resource.RLIMIT_SIGPENDING, 10)],
)
def test_a_limit_of_the_pod_that_is_lower_than_the_sandbox_s_holds(kind: int, most: int) -> None:
    assert limited(kind, most) == ""


@needs_sandbox
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv isn't installed")
def test_what_keeps_an_interpreter_from_starting_is_said() -> None:
    assert limited(resource.RLIMIT_NOFILE, 16) == (
        "An interpreter for a completion's code can't be started (Invalid argument).\n"
    )


def test_an_unknown_architecture_has_no_filter() -> None:
    with pytest.raises(sandbox_seccomp.UnknownArchitectureError):
        sandbox_seccomp.system_call_filter("riscv64", 1)


def test_a_folder_that_can_not_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        SandboxUnavailableError, match=r"^Model-written code needs a folder .* mount an emptyDir at /tmp"
    ):
        require_sandbox()
    with pytest.raises(SandboxUnavailableError, match="mount an emptyDir"):
        run("1")


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_a_python_that_does_not_start_is_said(python: str) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"^An interpreter for model-written code .*\.$"):
        require_sandbox_of(DEFAULT_LIMITS, python)


def test_another_system_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailableError, match="on Linux only"):
        require_sandbox()


OTHER_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(OTHER_PYTHON is None, reason="no Python that others can read")
def test_root_becomes_nobody_where_nobody_can_read_the_library() -> None:
    assert OTHER_PYTHON is not None
    code = "import os\nprint(os.getresuid(), os.getgroups(), open('file', 'w').write('data'), os.listdir())"
    assert run(code, runner=SandboxedPython(python=OTHER_PYTHON)).text == ("(65534, 65534, 65534) [] 4 ['file']\n")


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
def test_root_that_remains_root_has_no_capabilities() -> None:
    async def look(runner: SandboxedPython) -> None:
        await runner.run("1", 60)
        assert runner._supervisor is not None
        supervisor = runner._supervisor.process.pid
        (interpreter,) = children(supervisor)
        status = dict(line.split(":\t", 1) for line in of_process(interpreter, "status").splitlines())
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[kind], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"

    run(look)
