"""What a block of code gives, and what the next one finds; and that nothing is left, whoever ends first."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from airflow_llmengine.worker.tools.code_runner import CodeOutput, SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox import SandboxedPython
from airflow_llmengine.worker.tools.sandbox_limits import DEFAULT_LIMITS, MAX_CODE_BYTES
from tests.waiting import wait_until
from tests.worker.tools.sandboxes import needs_sandbox
from tests.worker.tools.surroundings import sandbox_processes

pytestmark = needs_sandbox

TIMEOUT = 60.0
TRACEBACK = 'Traceback (most recent call last):\n  File "<string>", line {}, in <module>\n'
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def scratches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch folders are made; nothing and nobody may be left there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(
    *blocks: str | Callable[[SandboxedPython], Awaitable[object]], runner: SandboxedPython | None = None
) -> CodeOutput:
    """Run blocks, and other things between them; gives the last block's output."""

    async def main() -> CodeOutput:
        python = runner or SandboxedPython()
        output = CodeOutput("", failed=False)
        try:
            for block in blocks:
                if isinstance(block, str):
                    output = await python.run(block, TIMEOUT)
                else:
                    await block(python)
        finally:
            await python.close()
        return output

    return asyncio.run(main())


def require_nothing_left(scratches: Path) -> None:
    assert list(scratches.iterdir()) == []
    assert sandbox_processes(str(scratches)) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a')", "a\n"),
        ("print('a', end='')", "a"),
        ("1 + 1", "2\n"),
        ("'text'", "'text'\n"),
        ("x = 1\nx", "1\n"),
        # It prints something: that is what it gives.
        ("print('a')\nx = print('b')", "a\nb\n"),
        ("def f():\n    print('a')\n    return 5\nf()", "a\n"),
        ("import os\nos.write(1, b'raw')\nNone", "raw"),
        # Earlier lines print, the last does not.
        ("print('a')\n5", "a\n5\n"),
        ("print('a', end='')\n5", "a\n5\n"),
        ("[].sort()", ""),
        ("None", ""),
        ("x = 1", ""),
        ("", ""),
        ("# nothing", ""),
        ("import sys\nsys.stderr.write('e')\nprint('o')", "eo\n"),
        ("print('o', end='')\nimport sys\nprint('e', file=sys.stderr)", "oe\n"),
        ("import sys\nsys.stdout.buffer.write(b'b')\nNone", "b"),
        ("if __name__ == '__main__':\n    print('main')", "main\n"),
        ("exit()", ""),
        ("import sys\nsys.exit(0)", ""),
        ("print('ä€😀')", "ä€😀\n"),
        ("1 if True else 2; 3", "3\n"),
    ],
)
def test_a_block_gives_what_it_prints(code: str, text: str) -> None:
    assert run(code) == CodeOutput(text, failed=False)


def test_what_the_sandbox_is_written_with_is_not_the_code_s() -> None:
    """Its modules put off annotations (``from __future__ import annotations``); code that doesn't say so doesn't."""
    assert "NameError" in run("def f(x: Undefined): ...").text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "1 / 0",
            TRACEBACK.format(1) + "ZeroDivisionError: division by zero\n",
        ),
        (
            "print('a')\n1 / 0",
            "a\n" + TRACEBACK.format(2) + "ZeroDivisionError: division by zero\n",
        ),
        (
            "print('a', end='')\nraise KeyError('b')",
            "a\nTraceback (most recent call last):\n  File \"<string>\", line 2, in <module>\nKeyError: 'b'\n",
        ),
        ("import sys\nsys.exit('wrong')", "wrong\n"),
        ("import sys\nsys.exit(3)", ""),
        (
            "raise KeyboardInterrupt",
            'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nKeyboardInterrupt\n',
        ),
    ],
)
def test_an_error_is_said_as_python_says_it(code: str, text: str) -> None:
    assert run(code) == CodeOutput(text, failed=True)


def test_an_error_in_the_library_names_no_file_of_the_worker() -> None:
    output = run("import json, warnings\nwarnings.warn('deprecated')\njson.loads('{')")
    assert output.failed
    assert "JSONDecodeError" in output.text
    assert sys.base_prefix not in output.text
    assert "sandbox" not in output.text


def test_a_syntax_error_shows_its_line() -> None:
    output = run("x = 1\ny = = 2")
    assert output.failed
    assert output.text.startswith('  File "<string>", line 2\n')
    assert output.text.endswith("SyntaxError: invalid syntax\n")


def test_names_and_files_stay_until_they_are_forgotten() -> None:
    define = "x = 5\nopen('file', 'w').write('data')\nimport sys\nsys.marked = True"
    look = "import os, sys\nsorted(name for name in globals() if name == 'x'), os.listdir(), hasattr(sys, 'marked')"
    assert run(define, look).text == "(['x'], ['file'], True)\n"
    assert run(define, SandboxedPython.forget, look).text == "([], [], False)\n"


def test_names_stay_after_an_error() -> None:
    assert run("x = 5\n1 / 0", "x").text == "5\n"


def test_a_file_of_code_can_be_imported() -> None:
    assert run("open('mine.py', 'w').write('value = 7')", "import mine\nmine.value").text == "7\n"


def test_data_classes_and_pickles_know_their_module() -> None:
    define = "import dataclasses, pickle\n@dataclasses.dataclass\nclass Point:\n    x: int"
    code = f"{define}\npickle.loads(pickle.dumps(Point(3)))"
    assert run(code).text == "Point(x=3)\n"


def test_the_standard_library_is_there() -> None:
    names = (
        "bisect bz2 collections csv ctypes datetime decimal fractions functools hashlib heapq html itertools json lzma"
    )
    names += (
        " math operator random re sqlite3 statistics string textwrap typing unicodedata uuid xml.etree.ElementTree zlib"
    )
    code = "import importlib\nfor name in " + repr(names.split()) + ":\n    importlib.import_module(name)"
    built = [name for name in ("bz2", "lzma", "sqlite3") if not _has(name)]
    for name in built:
        code = code.replace(f"'{name}', ", "")
    assert run(code) == CodeOutput("", failed=False)


def _has(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def test_the_same_code_gives_the_same() -> None:
    code = "print({str(number) for number in range(50)})"
    assert run(code).text == run(code).text


def test_its_environment_is_empty_and_its_folder_is_its_own(scratches: Path) -> None:
    output = run("import os\nprint(dict(os.environ), os.getcwd())")
    assert output.text.startswith(f"{{}} {scratches}/llmengine-code-")


def test_it_gives_way_to_the_engine_and_dies_first() -> None:
    async def look(runner: SandboxedPython) -> None:
        await runner.run("1", TIMEOUT)
        assert runner._supervisor is not None
        (interpreter,) = children(runner._supervisor.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, interpreter) == 19
        assert of_process(interpreter, "oom_score_adj").strip() == "1000"

    run(look)


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def state(pid: int) -> str:
    return of_process(pid, "stat").rpartition(")")[2].split()[0]


def children(pid: int) -> list[int]:
    return [int(child) for child in of_process(pid, f"task/{pid}/children").split()]


def test_an_interpreter_is_stopped_between_runs() -> None:
    async def look(runner: SandboxedPython) -> None:
        await runner.run("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)", TIMEOUT)
        assert runner._supervisor is not None
        (interpreter,) = children(runner._supervisor.process.pid)
        wait_until(lambda: state(interpreter) == "T")

    run(look)


def test_after_a_timeout_the_next_block_has_a_new_interpreter() -> None:
    async def too_long(runner: SandboxedPython) -> None:
        output = await runner.run("print('so far')\nx = 2\nwhile True:\n    pass", 0.2)
        assert output == CodeOutput("so far\nTimeoutError: the code ran for longer than 0.2 s\n", failed=True)

    output = run("x = 1", too_long, "import os\nos.listdir(), 'x' in globals()")
    assert output.text == "([], False)\n"


def test_cpu_time_is_limited_by_the_kernel_too() -> None:
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    assert 62 <= int(run(code).text) <= 64


def test_long_code_is_refused() -> None:
    assert run("#" * (MAX_CODE_BYTES + 1)).failed
    assert run("#" * (MAX_CODE_BYTES - 8) + "\n42").text == "42\n"


def test_code_longer_than_a_pipe_that_nobody_reads_is_timed_out() -> None:
    async def deaf(runner: SandboxedPython) -> None:
        # It says that it is done, and never reads again.
        await runner.run("import os\nos.write(4, b'0')\nwhile True:\n    pass", 0.2)
        assert (await runner.run("#" * 900_000, 0.2)).text.startswith("TimeoutError")

    assert run(deaf, "1").text == "1\n"


def test_limits_are_what_they_are_said_to_be() -> None:
    runner = SandboxedPython(DEFAULT_LIMITS._replace(output_bytes=10))
    assert run("print('x' * 9)", runner=runner) == CodeOutput("x" * 9 + "\n", failed=False)
    runner = SandboxedPython(DEFAULT_LIMITS._replace(output_bytes=10))
    assert run("print('x' * 10)", runner=runner) == CodeOutput(
        "x" * 10 + "\nOSError: more than 10 bytes were printed\n", failed=True
    )


def test_closing_ends_all(scratches: Path) -> None:
    run("open('file', 'w').write('data')")
    require_nothing_left(scratches)


def test_closing_twice_or_before_a_run_is_harmless(scratches: Path) -> None:
    run(SandboxedPython.close, "1", SandboxedPython.close, SandboxedPython.close)
    require_nothing_left(scratches)


def test_a_cancelled_run_leaves_nothing(scratches: Path) -> None:
    async def main() -> None:
        runner = SandboxedPython()
        running = asyncio.create_task(runner.run("print(1, flush=True)\nwhile True:\n    pass", TIMEOUT))
        await asyncio.to_thread(wait_until, lambda: len(sandbox_processes(str(scratches))) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await runner.close()
        require_nothing_left(scratches)

    asyncio.run(main())


def test_a_cancelled_close_is_completed(scratches: Path) -> None:
    async def main() -> None:
        runner = SandboxedPython()
        await runner.run("1", TIMEOUT)
        closing = asyncio.create_task(runner.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await runner.close()
        require_nothing_left(scratches)

    asyncio.run(main())


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_nothing_outlives_a_worker_that_is_killed(scratches: Path, signal_name: str) -> None:
    code = (
        "import asyncio, tempfile\nfrom airflow_llmengine.worker.tools.sandbox import SandboxedPython\n"
        f"tempfile.tempdir = {str(scratches)!r}\n"
        "async def main():\n    runner = SandboxedPython()\n"
        '    await runner.run(\'open("file", "w").write("data")\', 60)\n'
        "    print('ready', flush=True)\n    await runner.run('while True: pass', 600)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        assert len(sandbox_processes(str(scratches))) == 2
        worker.send_signal(getattr(signal, signal_name))
    wait_until(lambda: not sandbox_processes(str(scratches)) and not list(scratches.iterdir()))


def test_an_interpreter_ends_with_its_supervisor(scratches: Path) -> None:
    async def kill(runner: SandboxedPython) -> None:
        await runner.run("open('file', 'w').write('data')", TIMEOUT)
        assert runner._supervisor is not None
        runner._supervisor.process.kill()
        with pytest.raises(SandboxUnavailableError, match="has ended"):
            await runner.run("1", TIMEOUT)

    assert run(kill, "2").text == "2\n"
    require_nothing_left(scratches)


def test_a_removed_file_is_kept_by_descriptors_alone_of_which_there_are_few() -> None:
    # One page of address space would keep a whole file, and no count would show it.
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "file = os.open('file', os.O_RDWR | os.O_CREAT)\nos.write(file, b'x' * 10000)\nos.unlink('file')\n"
        "for flags in (1, 2):\n"
        "    address = libc.mmap(None, ctypes.c_size_t(4096), 1, flags, file, ctypes.c_long(0))\n"
        "    print(address == 2**64 - 1, os.strerror(ctypes.get_errno()))\n"
    )
    assert run(code).text == 2 * "True Operation not permitted\n"


@pytest.mark.parametrize("number", [35, 40, 63])
def test_a_signal_without_a_name_ends_the_interpreter_alone(number: int) -> None:
    async def end(runner: SandboxedPython) -> None:
        output = await runner.run(f"import os\nos.kill(os.getpid(), {number})", TIMEOUT)
        assert output == CodeOutput(f"SystemError: the interpreter was ended by signal {number}\n", failed=True)

    assert run(end, "2").text == "2\n"


def test_an_interpreter_that_was_killed_meanwhile_is_replaced() -> None:
    async def kill(runner: SandboxedPython) -> None:
        await runner.run("x = 1", TIMEOUT)
        assert runner._supervisor is not None
        supervisor = runner._supervisor.process.pid
        (interpreter,) = children(supervisor)
        os.kill(interpreter, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: state(interpreter) == "Z")

    assert run(kill, "'x' in globals()") == CodeOutput("False\n", failed=False)


def test_many_at_once_do_not_see_one_another(scratches: Path) -> None:
    async def one(number: int) -> str:
        runner = SandboxedPython()
        try:
            await runner.run(f"x = {number}\nopen('file', 'w').write(str(x))", TIMEOUT)
            return (await runner.run("print(x, open('file').read())", TIMEOUT)).text
        finally:
            await runner.close()

    async def main() -> list[str]:
        return await asyncio.gather(*map(one, range(16)))

    assert asyncio.run(main()) == [f"{number} {number}\n" for number in range(16)]
    require_nothing_left(scratches)
