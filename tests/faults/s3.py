"""Runs over S3: moto's server, which makes a plan's storage faults itself, on the wire."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from airflow_llmengine.storage.filesystem import Storage
from tests.faults.faulty_storage import DELAY_SECONDS, QUICK, kind_of
from tests.faults.plan import Operation, Plan, StorageFault
from tests.faults.runner import Run, Runner
from tests.storage.s3_server import SPARED_ACCESS_KEY, Fault, S3Server

BUCKET = "faults"


@functools.cache
def server() -> S3Server:
    """One server for all runs of this process."""
    started = S3Server()
    started.start()
    started.client.create_bucket(Bucket=BUCKET)
    return started


@functools.cache
def storage() -> Storage:
    """One connection for all runs: its library takes half a second to begin with."""
    return _opened(server().options)


@functools.cache
def spared_storage() -> Storage:
    """Another, for the harness itself: it meets no fault."""
    return _opened({**server().options, "key": SPARED_ACCESS_KEY})


def _opened(options: dict[str, Any]) -> Storage:
    opened = Storage({"s3": options}, retry=QUICK)
    opened.location(f"s3://{BUCKET}/first").require_commits()
    return opened


def run_on_s3(plan: Plan, folder: Path, check: Callable[[Run, str], list[str]]) -> Run:
    """Run a plan in a folder of the bucket; the local folder only names it."""

    def make_faults(run: Run, faults: Sequence[StorageFault]) -> None:
        server().faults[:] = [on_the_wire(fault, run) for fault in faults]

    server().reset()
    folder_url = f"s3://{BUCKET}/{folder.name}"
    return Runner(plan, folder_url, spared_storage(), check, below=make_faults, below_storage=storage())()


def on_the_wire(fault: StorageFault, run: Run) -> Fault:
    """The same fault as the server makes it."""

    def matches(method: str, path: str, query: str) -> bool:
        operation = operation_of(method, path, query)
        if fault.operation not in (operation, "any") and not (fault.operation in WRITES and operation in WRITES):
            return False
        return fault.file in (kind_of(path if operation != "list" else f"{path}.job/"), "any")

    def met() -> None:
        run.world.fire(fault.kind)
        run.world.fired_at.add((fault.operation, fault.file))

    made = Fault(method="", times=fault.times, wait=fault.nth, matches=matches, met=met)
    match fault.kind:
        case "503":
            made.code = "SlowDown"
        case "io error" | "disk full":
            made.status, made.code = 500, "InternalError"
        case "denied":
            made.status, made.code = 403, "AccessDenied"
        case "delay":
            made.delay = DELAY_SECONDS
        case "timeout":
            made.status = None
        case "answer lost":
            made.status, made.executed = None, True
        case "torn write":
            # An upload that breaks off leaves nothing; an answer that does is the other half of it.
            made.status, made.half = None, fault.operation not in WRITES
    return made


WRITES = ("create", "replace", "write", "probe")
"""All of them are puts."""


def operation_of(method: str, path: str, query: str) -> Operation:
    """What a request asks of the store."""
    if method == "GET" and "list-type" in parse_qs(query, keep_blank_values=True):
        return "list"
    if method == "POST" and "delete" in parse_qs(query, keep_blank_values=True):
        return "delete"
    operations: dict[str, Operation] = {"GET": "read", "HEAD": "stat", "PUT": "create", "DELETE": "delete"}
    return operations.get(method, "any")
