"""The command line ``llmengine-batch``: everything the Airflow operator does to a job, by hand."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import textwrap
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from airflow_llmengine import __version__
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.hardware.gpus import Gpu
from airflow_llmengine.spec.replica_nodes import LIFELINE_PORT, NODE_TOKEN_VARIABLE, nodes_of
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.storage.cleaning import abandoned_scratch, delete_leftovers, delete_scratch
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.launch import job_input_identity
from airflow_llmengine.storage.status import HEARTBEAT_TIMEOUT_SECONDS, NoSuchJobError, cancel_job, job_status
from airflow_llmengine.worker.attempt import (
    AttemptOptions,
    AttemptOutcome,
    JobMismatchError,
    collect_job,
    explain_by_version,
    given_back,
    join_job,
    run_attempt,
    storage_exit_code,
)
from airflow_llmengine.worker.chunks import DEFAULT_CHUNK_RECORDS, DEFAULT_CHUNK_TOKENS
from airflow_llmengine.worker.engines.load import EngineUnavailableError, engine_name
from airflow_llmengine.worker.environment import (
    REQUEST_PREFIX,
    EnvironmentInvalidError,
    storage_caller,
    take_request,
    take_storage_options,
)
from airflow_llmengine.worker.launcher_pipe import LauncherPipe
from airflow_llmengine.worker.logs import configure_logs, is_for_a_launcher, log_end
from airflow_llmengine.worker.nodes.command import follow, lead
from airflow_llmengine.worker.planning import gpu_types, planned
from airflow_llmengine.worker.stopping import Stop, watch_signals

logger = logging.getLogger(__name__)

COMMAND_LINE_OWNER = "llmengine-batch"
"""Owner of outputs that are launched by hand."""

LOG_FORMATS = ("text", "json")

REQUEST_HELP = (
    "the CreateBatchCompletions request as JSON: a file, a URL, - for standard input, or env:NAME for the environment "
    "variable NAME, which is removed once it was read"
)

ENVIRONMENT_HELP = """\
storage, by environment variables:
  LLMENGINE_STORAGE_OPTIONS       fsspec's options by protocol as JSON, such as {"s3": {"endpoint_url": "https://..."}}
  LLMENGINE_STORAGE_OPTIONS_FILE  a JSON file of that form; its options stand above those of the variable
  AWS_ACCESS_KEY_ID and the like  credentials, as the store's own library takes them
  The first two and AWS's credentials are removed once they were read, so that the engine does not inherit them.
"""

EXIT_CODES_HELP = """\
exit codes:
   0  done
  64  bad request: the request, or the input as a whole, can't be run
  65  too many failed records: all of them, or more than --max-error-rate; trying again does not help
  69  the engine could not be started, or died; what was finished is kept
  70  a defect of this program; what was finished is kept
  74  storage could not be reached; what was committed is kept
  75  stopped early (deadline, cancel, SIGTERM), or records failed for reasons that may be over: run it again to go on;
      what was finished is kept
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (``spec.exit_codes``)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Who launches a worker of another version must be able to read what it says of its arguments.
    as_json = "--log-format=json" in arguments or os.environ.get("LLMENGINE_LOG_FORMAT") == "json"
    configure_logs("json" if as_json else "text")
    parser = _parser()
    options = parser.parse_args(arguments)
    if getattr(options, "replica", 0) >= getattr(options, "replicas", 1):
        parser.error(f"--replica {options.replica} is not one of --replicas {options.replicas}: they count from 0")
    if getattr(options, "generation", None) is not None and not options.launched:
        parser.error("--generation names a job that was launched: give --launched too")
    if getattr(options, "replicas", 1) > 1 and options.if_done == "regenerate" and not options.series:
        parser.error("--if-done regenerate with several --replicas: give all of them one --series, or each begins anew")
    if options.log_format not in LOG_FORMATS:
        parser.error(f"LLMENGINE_LOG_FORMAT is {options.log_format!r}: it may be {' or '.join(LOG_FORMATS)}")
    configure_logs(options.log_format, verbose=options.verbose)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except RequestInvalidError as error:
        log_end(logger, f"the request can't be run:\n{textwrap.indent(str(error), '  ')}")
        return ExitCode.BAD_REQUEST
    except (NoSuchJobError, JobMismatchError, EngineUnavailableError, EnvironmentInvalidError) as error:
        log_end(logger, str(error))
        return ExitCode.BAD_REQUEST
    except StorageError as error:
        log_end(logger, str(error))
        return storage_exit_code(error)
    except Exception as error:
        # The text of an unknown exception may quote a prompt.
        logger.debug("where it came from", exc_info=True)
        log_end(logger, f"{type(error).__name__}: this is a defect of llmengine-batch; --verbose shows where")
        return ExitCode.INTERNAL


def _run(options: argparse.Namespace) -> int:
    stop = Stop()
    watch_signals(stop, options.grace_seconds)
    storage = _storage(options, stop)
    request = _job_request(storage, options)
    if nodes_of(request) > 1:
        return _end(lead(options, storage, request, _attempt(options), stop))
    return _end(run_attempt(storage, request, _attempt(options), stop))


def _follow(options: argparse.Namespace) -> int:
    storage = _storage(options)
    follow(options, storage, _job_request(storage, options))
    return ExitCode.DONE


def _collect(options: argparse.Namespace) -> int:
    # A stop ends it at once, and nothing is lost: until the manifest stands, the chunks do.
    stop = Stop()
    watch_signals(stop, options.grace_seconds)
    storage = _storage(options, stop)
    request = _job_request(storage, options)
    # Only its name: collecting needs no engine, and may run where none is installed.
    engine = engine_name()
    launch = join_job(
        storage,
        request,
        input_identity=job_input_identity(storage, request),
        engine=engine,
        generation=options.generation,
    )
    if launch.manifest is not None:
        return _end(given_back(launch.manifest, _attempt(options)))
    directory = JobDirectory(storage, request.output_data_path)
    return _end(collect_job(directory, launch, request, engine, _attempt(options)))


def _validate(options: argparse.Namespace) -> int:
    validate_request(_read_request(_storage(options), options.request))
    _say("valid")
    return ExitCode.DONE


def _plan(options: argparse.Namespace) -> int:
    storage = _storage(options)
    _say(*planned(storage, validate_request(_read_request(storage, options.request)), options.gpu_types))
    return ExitCode.DONE


def _status(options: argparse.Namespace) -> int:
    status = job_status(_storage(options), options.output)
    if options.json:
        _say(
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
        _say(*status.lines())
    return ExitCode.DONE if status.state != "absent" else ExitCode.BAD_REQUEST


def _cancel(options: argparse.Namespace) -> int:
    storage = _storage(options)
    if job_status(storage, options.output).state == "done":
        _say("the job is done already")
        return ExitCode.DONE
    handle = cancel_job(storage, options.output, options.reason)
    _say(f"generation {handle.generation} of {handle.path} is told to stop; its workers look every few seconds")
    return ExitCode.DONE


def _clean(options: argparse.Namespace) -> int:
    storage = _storage(options)
    # A worker at work shows itself every few seconds; what is younger than that is nobody's leftover.
    older_than = max(options.older_than, 2 * HEARTBEAT_TIMEOUT_SECONDS)
    found = abandoned_scratch(storage, options.output, older_than_seconds=older_than)
    for scratch in found:
        if not options.dry_run:
            delete_scratch(storage, scratch.handle)
        _say(f"{'would delete' if options.dry_run else 'deleted'} {scratch.handle.scratch_name}")
    leftovers = 0 if options.dry_run else delete_leftovers(storage, options.output, older_than_seconds=older_than)
    if options.dry_run:
        _say("unfinished files of writers that were killed are only looked for without --dry-run")
    if leftovers:
        _say(f"deleted {leftovers} unfinished files of writers that were killed")
    if not found and not leftovers:
        _say("nothing to delete")
    return ExitCode.DONE


def _storage(options: argparse.Namespace, stop: Stop | None = None) -> Storage:
    """Storage as a launcher has it, if one started this, and else as the environment says.

    With ``stop``, the launcher's end is this process's end.
    """
    pipe = None if stop is None or options.control_fd is None else LauncherPipe(options.control_fd)
    sent = None if pipe is None else pipe.read_storage_options()
    caller = storage_caller(sent) if getattr(options, "launched", False) else None
    storage = Storage(take_storage_options(sent), caller=caller)
    if pipe is not None and stop is not None:
        pipe.watch(stop, options.grace_seconds)
    return storage


def _read_request(storage: Storage, source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    if source.startswith(REQUEST_PREFIX):
        return take_request(source.removeprefix(REQUEST_PREFIX))
    return storage.location(source).read_bytes()


def _job_request(storage: Storage, options: argparse.Namespace) -> CreateBatchCompletionsV1Request:
    source = _read_request(storage, options.request)
    try:
        return validate_request(source)
    except RequestInvalidError as error:
        if options.launched:
            try:
                explain_by_version(storage, source)
            except JobMismatchError as version:
                refusals = "; ".join(map(str, error.refusals))
                raise JobMismatchError(f"the request can't be run here: {refusals}; {version}") from None
        raise


def _attempt(options: argparse.Namespace) -> AttemptOptions:
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
        chunk_records=options.chunk_records,
        chunk_tokens=options.chunk_tokens,
    )


def _end(outcome: AttemptOutcome) -> int:
    if outcome.exit_code is ExitCode.DONE:
        logger.info("%s", outcome.message)
    else:
        log_end(logger, outcome.message)
    if outcome.manifest is not None:
        _say(outcome.manifest.model_dump_json())
    return outcome.exit_code


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Parser(argparse.ArgumentParser):
    """A parser whose own complaint is a bad request too."""

    def error(self, message: str) -> NoReturn:
        if is_for_a_launcher():
            log_end(logger, f"{self.prog}: {message}")
            self.exit(ExitCode.BAD_REQUEST)
        self.print_usage(sys.stderr)
        self.exit(ExitCode.BAD_REQUEST, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="llmengine-batch",
        description="Run a batch of LLM completions, and see to the job it left on storage.",
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llmengine-batch {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_run(commands)
    _add_collect(commands)
    _add_follow(commands)
    for name, command, summary, description in (
        (
            "validate",
            _validate,
            "say whether a request can be run",
            """\
            Check a request without launching anything. Every refusal is one line: the field, what is wrong with it,
            and what to use instead. Prints "valid" and exits 0, or prints the refusals and exits 64.
            """,
        ),
        (
            "plan",
            _plan,
            "show what a request will ask for",
            """\
            Print the replicas, hardware and deadline of a request, and the arithmetic behind the hardware. Nothing is
            read but the request and, if its GPUs are known, the model's config; nothing is launched. Exits 64 if the
            model does not fit, and says by how much.
            """,
        ),
    ):
        sub = _add_command(commands, name, command, summary, description)
        sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
        if command is _plan:
            sub.add_argument(
                "--gpu-types",
                type=_gpu_types,
                metavar="TYPES",
                help="the types of GPU that the cluster has, the cheapest first, as in gpu_types of the connection's "
                "field cluster: names between commas, or JSON; none: workers without GPUs. Not needed for a request "
                "with a gpu_type",
            )
    sub = _add_command(
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
    sub = _add_command(
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
    sub = _add_command(
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
        type=_seconds,
        default=_seconds("7d"),
        metavar="AGE",
        help="30m, 12h, 7d (the default) ...; at least two minutes, so that no worker at work loses its job",
    )
    sub.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    return parser


def _add_run(commands: Any) -> None:
    sub = _add_command(
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
    sub.add_argument("--replica", type=_count(0), default=0, metavar="I", help="which share to do, from 0 (default: 0)")
    sub.add_argument(
        "--replicas",
        type=_count(1),
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
        "--launched",
        action="store_true",
        help="join the job that a launcher has written down instead of launching one (used by the operator)",
    )
    sub.add_argument(
        "--chunk-records",
        type=_count(1),
        default=DEFAULT_CHUNK_RECORDS,
        metavar="N",
        help=f"most records that are committed together (default: {DEFAULT_CHUNK_RECORDS}); a job that was begun "
        "keeps its own",
    )
    sub.add_argument(
        "--chunk-tokens",
        type=_count(1),
        default=DEFAULT_CHUNK_TOKENS,
        metavar="N",
        help=f"most tokens, read and asked for, of a chunk (default: {DEFAULT_CHUNK_TOKENS})",
    )
    _add_nodes_arguments(sub, "nodes_per_worker above 1: ")


def _add_collect(commands: Any) -> None:
    sub = _add_command(
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
        launched=True,
        chunk_records=DEFAULT_CHUNK_RECORDS,
        chunk_tokens=DEFAULT_CHUNK_TOKENS,
    )


def _add_follow(commands: Any) -> None:
    sub = _add_command(
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
    sub.add_argument("--node", type=_count(1), required=True, metavar="K", help="which node this is; the first is 0")
    sub.add_argument("--leader", required=True, metavar="HOST", help="name or address of the first node")
    _add_nodes_arguments(sub, "")
    _add_grace_argument(sub)
    sub.set_defaults(launched=True, control_fd=None)


def _add_nodes_arguments(sub: argparse.ArgumentParser, when: str) -> None:
    sub.add_argument(
        "--nodes-port",
        type=_count(1),
        default=LIFELINE_PORT,
        metavar="PORT",
        help=f"{when}port of the first node to which the others connect (default: {LIFELINE_PORT})",
    )
    sub.add_argument(
        "--nodes-within",
        type=_count(1),
        default=3600,
        metavar="S",
        help=f"{when}how long the nodes may take to find each other (default: 3600)",
    )


def _add_job_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
    sub.add_argument(
        "--owner",
        default=COMMAND_LINE_OWNER,
        help=f"who the output belongs to; another owner's output is refused (default: {COMMAND_LINE_OWNER})",
    )
    sub.add_argument(
        "--max-error-rate",
        type=_rate,
        metavar="RATE",
        help="fail the job when more than this share of its records failed, 0 to 1; a job whose every record failed is "
        "a failed job at any rate",
    )
    sub.add_argument(
        "--generation",
        type=_count(1),
        metavar="N",
        help="join this generation of a launched job, or none (used by the operator)",
    )
    _add_grace_argument(sub)
    sub.add_argument(
        "--control-fd",
        type=_count(0),
        metavar="FD",
        help="a pipe from the launcher: storage options as one line of JSON, then its end means that the launcher is "
        "gone (used by the operator)",
    )


def _add_grace_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--grace-seconds",
        type=_count(1),
        default=30,
        metavar="S",
        help="how long after SIGTERM this process may live; it saves in time (default: 30)",
    )


def _add_command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], summary: str, description: str
) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(description),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{EXIT_CODES_HELP}\n{ENVIRONMENT_HELP}" if name in ("run", "collect", "follow") else ENVIRONMENT_HELP,
    )
    sub.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=os.environ.get("LLMENGINE_LOG_FORMAT", "text"),
        help="how log lines look on standard error (default: text)",
    )
    sub.add_argument("--verbose", action="store_true", help="log DEBUG lines too; they may quote prompts and outputs")
    sub.set_defaults(command=command)
    return sub


def _count(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return whole_number


def _gpu_types(text: str) -> tuple[Gpu, ...]:
    try:
        return gpu_types(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1") from None
    if not 0 <= rate <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return rate


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 90s, 30m, 12h or 7d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
