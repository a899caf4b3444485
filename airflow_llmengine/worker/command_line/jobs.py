"""The commands that see to a job on storage: status, cancel and clean."""

from __future__ import annotations

import argparse
import json
from typing import Any

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.cleaning import abandoned_scratch, delete_leftovers, delete_scratch
from airflow_llmengine.storage.status import HEARTBEAT_TIMEOUT_SECONDS, cancel_job, job_status
from airflow_llmengine.worker.command_line.argument_types import seconds
from airflow_llmengine.worker.command_line.opening import open_storage
from airflow_llmengine.worker.command_line.parser import add_command, say


def add_status(commands: Any) -> None:
    """Add ``status``."""
    sub = add_command(
        commands,
        "status",
        _status,
        "show how a job is doing",
        """\
        Read the job of an output path from its files: done, with the counts of its manifest, or how many chunks are
        committed and what each replica last said. It works from any machine that reaches the storage.
        """,
    )
    sub.add_argument("output", metavar="OUTPUT", help="the job's output_data_path")
    sub.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def add_cancel(commands: Any) -> None:
    """Add ``cancel``."""
    sub = add_command(
        commands,
        "cancel",
        _cancel,
        "tell a job's workers to stop and save",
        """\
        Every worker of the job's current generation stops within seconds, keeps what it has finished, and exits 75.
        A new launch goes on from there.
        """,
    )
    sub.add_argument("output", metavar="OUTPUT", help="the job's output_data_path")
    sub.add_argument("--reason", default="by hand", help='what the workers\' log says of it (default: "by hand")')


def add_clean(commands: Any) -> None:
    """Add ``clean``."""
    sub = add_command(
        commands,
        "clean",
        _clean,
        "delete what failed jobs left behind",
        """\
        Delete the scratch folders beside an output that have shown no sign of life for a while: of jobs that failed
        for good or were replaced. Output and manifest are never touched. What a deleted folder had finished must be
        generated again if that job is ever run again.
        """,
    )
    sub.add_argument("output", metavar="OUTPUT", help="the job's output_data_path")
    sub.add_argument(
        "--older-than",
        type=seconds,
        default=seconds("7d"),
        metavar="AGE",
        help="30m, 12h, 7d (the default) ...; at least two minutes, so that no worker at work loses its job",
    )
    sub.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _status(options: argparse.Namespace) -> int:
    status = job_status(open_storage(options), options.output)
    if options.json:
        say(
            json.dumps(
                {
                    "state": status.state,
                    "job": None if status.handle is None else status.handle.model_dump(mode="json"),
                    "manifest": None if status.manifest is None else status.manifest.model_dump(mode="json"),
                    "deadline": None if status.job is None else status.job.deadline,
                    "chunks": None if status.end is None else status.end.chunks,
                    "chunks_committed": status.chunks_committed,
                    "records": None if status.end is None else status.end.records,
                    "cancelled": None if status.cancelled is None else status.cancelled.model_dump(mode="json"),
                    "replicas": [beat.model_dump(mode="json") for beat in status.heartbeats],
                }
            )
        )
    else:
        say(*status.lines())
    return ExitCode.DONE if status.state != "absent" else ExitCode.BAD_REQUEST


def _cancel(options: argparse.Namespace) -> int:
    storage = open_storage(options)
    if job_status(storage, options.output).state == "done":
        say("the job is done already")
        return ExitCode.DONE
    handle = cancel_job(storage, options.output, options.reason)
    say(f"generation {handle.generation} of {handle.path} is told to stop; its workers look every few seconds")
    return ExitCode.DONE


def _clean(options: argparse.Namespace) -> int:
    storage = open_storage(options)
    # A worker at work shows itself every few seconds; what is younger than that is nobody's leftover.
    older_than = max(options.older_than, 2 * HEARTBEAT_TIMEOUT_SECONDS)
    found = abandoned_scratch(storage, options.output, older_than_seconds=older_than)
    for scratch in found:
        if not options.dry_run:
            delete_scratch(storage, scratch.handle)
        say(f"{'would delete' if options.dry_run else 'deleted'} {scratch.handle.scratch_name}")
    leftovers = 0 if options.dry_run else delete_leftovers(storage, options.output, older_than_seconds=older_than)
    if options.dry_run:
        say("unfinished files of writers that were killed are only looked for without --dry-run")
    if leftovers:
        say(f"deleted {leftovers} unfinished files of writers that were killed")
    if not found and not leftovers:
        say("nothing to delete")
    return ExitCode.DONE
