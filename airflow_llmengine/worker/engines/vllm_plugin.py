"""A vLLM plugin that ends vLLM's processes with the worker that started them: not later, and not sooner.

vLLM's engine process survives a SIGKILL of its parent and goes on computing, with all of the GPU's memory; nobody reads
its answers any more. vLLM loads its plugins (entry point group ``vllm.general_plugins``) in every process that it
starts, so this is the place from which such a process can watch its parent.

A process of vLLM's that fails waits for its own children before it ends, and one of those may have swallowed the signal
that should have ended it. Nobody would ever be told: so the children are killed after a while.

An interrupt from the keyboard goes to all of a terminal's processes at once. The worker then finishes what it can, for
which it needs its engine: so these processes leave the interrupt to the worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.util import Finalize

END_WITH_PARENT_VARIABLE = "LLMENGINE_END_WITH_PARENT"
"""Environment variable: ``1`` switches the plugin on. The worker sets it; a vLLM of somebody else's is left alone."""

PLUGIN_NAME = "airflow_llmengine_end_with_parent"
"""Its name among vLLM's plugins, for ``VLLM_PLUGINS``."""

POLL_SECONDS = 1.0

CHILDREN_SECONDS = 10.0
"""How long the children of a process that is ending may take to end by themselves."""

_watching = threading.Lock()


def end_with_parent() -> None:
    """Watch the parent, and ignore interrupts, if this is a process of a worker's vLLM; otherwise do nothing.

    vLLM may call it more than once in one process.
    """
    parent = multiprocessing.parent_process()
    if os.environ.get(END_WITH_PARENT_VARIABLE) != "1" or parent is None:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _watching.acquire(blocking=False):
        # Run before multiprocessing joins the children, which it does without a limit.
        Finalize(None, _kill_late_children, exitpriority=0)
        threading.Thread(target=_watch, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _kill_late_children() -> None:
    def kill() -> None:
        time.sleep(CHILDREN_SECONDS)
        for child in multiprocessing.active_children():
            child.kill()

    threading.Thread(target=kill, name="end-children", daemon=True).start()


def _watch(parent_sentinel: int) -> None:
    # The sentinel is a pipe that closes with the parent, also when it died before this process got here. Should
    # somebody else have inherited its other end, the kernel still gives an orphan another parent.
    parent = os.getppid()
    while not wait([parent_sentinel], timeout=POLL_SECONDS) and os.getppid() == parent:
        pass
    # No clean-up that could hang: what this process holds is of no use to anybody.
    os._exit(1)
