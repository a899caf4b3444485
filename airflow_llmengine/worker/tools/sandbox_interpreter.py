"""The interpreter's process: takes blocks of code and runs them in one module, as ``python -c`` would.

Everything here is in the hands of that code once it runs. So nothing that matters is decided here: the supervisor
counts, measures and ends from outside, and takes for an answer whatever comes.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import site
import struct
import sys
import traceback
import types
from contextlib import suppress

__all__ = ["CODE_DESCRIPTOR", "DONE_DESCRIPTOR", "FAILED", "OUTPUT_DESCRIPTORS", "READY", "SUCCEEDED", "interpret"]

OUTPUT_DESCRIPTORS = (1, 2)
"""Both are the same pipe, so that what is printed stays in order."""

CODE_DESCRIPTOR = 3
"""Whence blocks come: length as four bytes, then UTF-8."""

DONE_DESCRIPTOR = 4
"""One byte after each block, `SUCCEEDED` or `FAILED`; before the first, `READY`."""

READY, SUCCEEDED, FAILED = b"r", b"0", b"1"

FILE_NAME = "<string>"
MAX_FRAMES = 10


class _Counting(io.FileIO):
    """A stream that knows how much was written, and how it ended."""

    written = 0
    ends_line = True

    def write(self, data: object) -> int:
        count = super().write(data)  # type: ignore[arg-type]
        if count:
            self.written += count
            self.ends_line = bytes(data)[count - 1 : count] == b"\n"  # type: ignore[call-overload]
        return count


def interpret() -> None:
    """Run the blocks that come, one after the other, until there are no more."""
    # Warnings and tracebacks name where something was called: not by the worker's paths.
    for function in [value for value in globals().values() if isinstance(value, types.FunctionType)]:
        if function.__module__ == __name__:
            function.__code__ = function.__code__.replace(co_filename="<interpreter>")
    linecache.clearcache()  # Since 3.13 it holds the supervisor's start, which is a ``<string>`` too.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    # Folder of the code itself: a file that it writes can be imported.
    sys.path.insert(0, "")
    sys.argv[:] = ["-c"]
    sys.dont_write_bytecode = True
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    site.setquit()
    while (code := _next_block()) is not None:
        output = _Counting(1, "wb", closefd=False)
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(output, "utf-8", "backslashreplace", write_through=True)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = sys.stdout  # type: ignore[misc]
        succeeded = _run(code, module.__dict__, output)
        sys.settrace(None)
        sys.setprofile(None)
        for descriptor in OUTPUT_DESCRIPTORS:
            os.fstat(descriptor)  # Where it was closed, this interpreter is of no more use.
        os.write(DONE_DESCRIPTOR, SUCCEEDED if succeeded else FAILED)


def _next_block() -> bytes | None:
    header = _read(4)
    if len(header) < 4:
        return None
    (length,) = struct.unpack("<I", header)
    return _read(length)


def _read(length: int) -> bytes:
    parts = []
    while length and (part := os.read(CODE_DESCRIPTOR, min(length, 65536))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _run(code: bytes, names: dict[str, object], output: _Counting) -> bool:
    try:
        _execute(code.decode("utf-8", "surrogatepass"), names, output)
    except SystemExit as end:
        if end.code is None or end.code == 0:
            return True
        if not isinstance(end.code, int):
            _write_line(str(end.code), output)
        return False
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its output
        text = f"{type(error).__name__}\n"
        with suppress(BaseException):
            text = _error_text(error)
        _write_line(text, output)
        return False
    return True


def _execute(code: str, names: dict[str, object], output: _Counting) -> None:
    tree = ast.parse(code, FILE_NAME)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, FILE_NAME, "exec", dont_inherit=True), names)  # noqa: S102 - what this process is for
    if not isinstance(last, ast.Expr):
        return
    before = output.written
    value = eval(compile(ast.Expression(last.value), FILE_NAME, "eval", dont_inherit=True), names)  # noqa: S307
    if value is not None and output.written == before:
        _write_line(repr(value), output)


def _error_text(error: BaseException) -> str:
    """The error as Python prints it, with the frames of the code alone."""
    report = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    seen: list[traceback.TracebackException] = [report]
    for part in seen:
        frames = [frame for frame in part.stack if frame.filename == FILE_NAME][-MAX_FRAMES:]
        # Without the line itself, as Python up to 3.12 shows code that is in no file.
        part.stack = traceback.StackSummary.from_list(
            [traceback.FrameSummary(frame.filename, frame.lineno, frame.name, line="") for frame in frames]
        )
        seen += [other for other in (part.__cause__, part.__context__, *(part.exceptions or ())) if other is not None]
    return "".join(report.format())


def _write_line(text: str, output: _Counting) -> None:
    data = (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace")
    if not output.ends_line:
        data = b"\n" + data
    while data:
        data = data[os.write(output.fileno(), data) :]
