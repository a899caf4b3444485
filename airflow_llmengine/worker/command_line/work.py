"""The commands that work on a job: run, collect, and follow for a further node of a replica."""

from __future__ import annotations

import argparse
import logging
import uuid
from typing import Any

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.replica_nodes import LIFELINE_PORT, NODE_TOKEN_VARIABLE, nodes_of
from airflow_llmengine.spec.table import Table
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.launch import job_input_identity
from airflow_llmengine.worker.attempt import (
    AttemptOptions,
    AttemptOutcome,
    collect_job,
    given_back,
    join_job,
    run_attempt,
    table_output,
)
from airflow_llmengine.worker.chunks import DEFAULT_CHUNK_RECORDS, DEFAULT_CHUNK_TOKENS
from airflow_llmengine.worker.command_line.argument_types import cache_path, count, rate
from airflow_llmengine.worker.command_line.opening import open_storage, read_job_request
from airflow_llmengine.worker.command_line.parser import REQUEST_HELP, add_command, add_engine_args, add_table, say
from airflow_llmengine.worker.engines.load import engine_name
from airflow_llmengine.worker.garbage import collect_garbage_seldom
from airflow_llmengine.worker.logs import log_end
from airflow_llmengine.worker.nodes.command import follow, lead
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.stopping import Stop, watch_signals

logger = logging.getLogger(__name__)

COMMAND_LINE_OWNER = "llmengine-batch"
"""Owner of outputs that are launched by hand."""


def add_run(commands: Any) -> None:
    """Add ``run``."""
    sub = add_command(
        commands,
        "run",
        _run,
        "run a job, or go on with it",
        """\
        Complete every record of the request's input and put the output in its place. Chunks are committed to
        <output>.job/ as they finish: run the same command again after a crash, and no finished record is generated a
        second time. The output appears whole or not at all, with <output>.manifest.json beside it.

        Logs go to standard error; the manifest is printed as one line of JSON when the job is done.

        example:
          llmengine-batch run request.json
          llmengine-batch run request.json --series july --replica 0 --replicas 2   (and 1 of 2 elsewhere, then collect)
        """,
    )
    _add_job_arguments(sub)
    sub.add_argument("--replica", type=count(0), default=0, metavar="I", help="which share to do, from 0 (default: 0)")
    sub.add_argument(
        "--replicas",
        type=count(1),
        default=1,
        metavar="N",
        help="into how many shares the work is cut (default: 1); may differ from one attempt to the next. With more "
        "than one, the output is put together by the command collect",
    )
    sub.add_argument(
        "--series",
        help="names a series of attempts that share one max_runtime_sec; by default each run has a budget of its own",
    )
    sub.add_argument(
        "--if-done",
        choices=("reuse", "regenerate"),
        default="reuse",
        help="if the output of this very job stands already: give it back (the default), or make it anew, once for "
        "each --series and so for each run that names none",
    )
    sub.add_argument("--overwrite", action="store_true", help="replace an output that something else wrote")
    sub.add_argument(
        "--cache-path",
        type=cache_path,
        metavar="URL",
        help="a folder of a store in which answers are kept for later runs, and looked for before an engine is loaded: "
        "those of greedy decoding, beam search and sampling with a seed (default: none)",
    )
    sub.add_argument(
        "--launched",
        action="store_true",
        help="join the job that a launcher has written down instead of launching one (used by the operator)",
    )
    sub.add_argument(
        "--chunk-records",
        type=count(1),
        default=DEFAULT_CHUNK_RECORDS,
        metavar="N",
        help=f"most records that are committed together (default: {DEFAULT_CHUNK_RECORDS}); a job that was begun "
        "keeps its own",
    )
    sub.add_argument(
        "--chunk-tokens",
        type=count(1),
        default=DEFAULT_CHUNK_TOKENS,
        metavar="N",
        help=f"most tokens, read and asked for, of a chunk (default: {DEFAULT_CHUNK_TOKENS})",
    )
    _add_nodes_arguments(sub, "nodes_per_worker above 1: ")


def add_collect(commands: Any) -> None:
    """Add ``collect``."""
    sub = add_command(
        commands,
        "collect",
        _collect,
        "put together the output of a job of several replicas",
        """\
        Put the committed chunks of a job together to its output, once every replica has done its share. Needs no
        model and no GPU. Says what is missing, and exits 75, if something is.
        """,
    )
    _add_job_arguments(sub)
    sub.set_defaults(
        replica=0,
        replicas=1,
        series=None,
        if_done="reuse",
        overwrite=False,
        cache_path=None,
        launched=True,
        chunk_records=DEFAULT_CHUNK_RECORDS,
        chunk_tokens=DEFAULT_CHUNK_TOKENS,
    )


def add_follow(commands: Any) -> None:
    """Add ``follow``."""
    sub = add_command(
        commands,
        "follow",
        _follow,
        "be a further node of a replica that spans several",
        f"""\
        Compute for the engine of a replica whose nodes_per_worker is more than 1, on another node than the first, where
        run does it all with the same request. It connects to the first, and ends with it. {NODE_TOKEN_VARIABLE} in
        the environment is the same text for all nodes of the replica.
        """,
    )
    sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
    sub.add_argument("--node", type=count(1), required=True, metavar="K", help="which node this is; the first is 0")
    add_engine_args(sub)
    add_table(sub)
    sub.add_argument("--leader", required=True, metavar="HOST", help="name or address of the first node")
    _add_nodes_arguments(sub, "")
    _add_grace_argument(sub)
    sub.set_defaults(launched=True, control_fd=None)


def _run(options: argparse.Namespace) -> int:
    collect_garbage_seldom()
    stop = Stop()
    watch_signals(stop, options.grace_seconds)
    storage = open_storage(options, stop)
    request, table = read_job_request(storage, options)
    if nodes_of(request) > 1:
        return _end(lead(options, storage, request, _attempt(options, table), stop))
    return _end(run_attempt(storage, request, _attempt(options, table), stop))


def _collect(options: argparse.Namespace) -> int:
    # A stop ends it at once, and nothing is lost: until the manifest stands, the chunks do.
    stop = Stop()
    watch_signals(stop, options.grace_seconds)
    storage = open_storage(options, stop)
    request, table = read_job_request(storage, options)
    # Only its name: collecting needs no engine, and may run where none is installed.
    engine = engine_name()
    launch = join_job(
        storage,
        request,
        input_identity=job_input_identity(storage, request),
        engine=engine,
        engine_args=options.engine_args,
        table=table,
        generation=options.generation,
    )
    if launch.manifest is not None:
        return _end(given_back(launch.manifest, _attempt(options, table)))
    directory = JobDirectory(storage, request.output_data_path)
    output = None if table is None else table_output(open_input(storage, request, table), request, table)
    return _end(collect_job(directory, launch, request, engine, _attempt(options, table), output))


def _follow(options: argparse.Namespace) -> int:
    storage = open_storage(options)
    follow(options, storage, read_job_request(storage, options)[0])
    return ExitCode.DONE


def _attempt(options: argparse.Namespace, table: Table | None) -> AttemptOptions:
    return AttemptOptions(
        owner=options.owner,
        series=options.series or str(uuid.uuid4()),
        replica=options.replica,
        replicas=options.replicas,
        launched=options.launched,
        generation=options.generation,
        if_done=options.if_done,
        overwrite=options.overwrite,
        max_error_rate=options.max_error_rate,
        engine_args=options.engine_args,
        table=table,
        cache_path=options.cache_path,
        chunk_records=options.chunk_records,
        chunk_tokens=options.chunk_tokens,
    )


def _end(outcome: AttemptOutcome) -> int:
    if outcome.exit_code is ExitCode.DONE:
        logger.info("%s", outcome.message)
    else:
        log_end(logger, outcome.message)
    if outcome.manifest is not None:
        say(outcome.manifest.model_dump_json())
    return outcome.exit_code


def _add_job_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
    sub.add_argument(
        "--owner",
        default=COMMAND_LINE_OWNER,
        help=f"who the output belongs to; another owner's output is refused (default: {COMMAND_LINE_OWNER})",
    )
    sub.add_argument(
        "--max-error-rate",
        type=rate,
        metavar="RATE",
        help="fail the job when more than this share of its records failed, 0 to 1; a job whose every record failed is "
        "a failed job at any rate",
    )
    add_engine_args(sub)
    add_table(sub)
    sub.add_argument(
        "--generation",
        type=count(1),
        metavar="N",
        help="join this generation of a launched job, or none (used by the operator)",
    )
    _add_grace_argument(sub)
    sub.add_argument(
        "--control-fd",
        type=count(0),
        metavar="FD",
        help="a pipe from the launcher: storage options as one line of JSON, then its end means that the launcher is "
        "gone (used by the operator)",
    )


def _add_nodes_arguments(sub: argparse.ArgumentParser, when: str) -> None:
    sub.add_argument(
        "--nodes-port",
        type=count(1),
        default=LIFELINE_PORT,
        metavar="PORT",
        help=f"{when}port of the first node to which the others connect (default: {LIFELINE_PORT})",
    )
    sub.add_argument(
        "--nodes-within",
        type=count(1),
        default=3600,
        metavar="S",
        help=f"{when}how long the nodes may take to find each other (default: 3600)",
    )


def _add_grace_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--grace-seconds",
        type=count(1),
        default=30,
        metavar="S",
        help="how long after SIGTERM this process may live; it saves in time (default: 30)",
    )
