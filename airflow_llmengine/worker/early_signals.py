"""The signals that ask a worker to stop, caught from its first moment on. Imports next to nothing, so that it is early.

The first process of a container has no default for SIGTERM: the kernel drops a signal that such a process does not
handle, and the container would only be killed at the end of its grace. What comes before somebody can act on it waits
here until then. Left is the start of the interpreter itself, some hundredths of a second in which nothing has been
begun: a SIGTERM that falls into it is lost, and the grace period bounds what that costs.
"""

from __future__ import annotations

import os
import signal

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_readers: list[int] = []


def catch_signals() -> None:
    """Have the signals that ask to stop wait for ``signal_pipe``. In the main thread only."""
    if _readers:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The handlers only have to exist: it is the byte in the pipe that is acted on.
    for number in STOPPING_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _readers.append(reader)


def signal_pipe() -> int:
    """The descriptor from which the numbers of the signals can be read, a byte each. For one reader."""
    catch_signals()
    return _readers.pop()
