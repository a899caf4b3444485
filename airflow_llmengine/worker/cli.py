"""The command line ``llmengine-batch``: everything the Airflow operator does to a job, by hand."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Sequence

from airflow_llmengine import __version__
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.status import NoSuchJobError
from airflow_llmengine.worker.attempt import CacheUnavailableError, JobMismatchError, storage_exit_code
from airflow_llmengine.worker.command_line.cache import add_cache
from airflow_llmengine.worker.command_line.jobs import add_cancel, add_clean, add_status
from airflow_llmengine.worker.command_line.parser import EXIT_CODES_HELP, LOG_FORMATS, Parser
from airflow_llmengine.worker.command_line.requests import add_plan, add_validate
from airflow_llmengine.worker.command_line.work import add_collect, add_follow, add_run
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.environment import EnvironmentInvalidError
from airflow_llmengine.worker.logs import configure_logs, log_end
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError

logger = logging.getLogger(__name__)


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
    except (
        NoSuchJobError,
        JobMismatchError,
        CacheUnavailableError,
        EngineUnavailableError,
        EnvironmentInvalidError,
        InputInvalidError,
        InputChangedError,
    ) as error:
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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="llmengine-batch",
        description="Run a batch of LLM completions, and see to the job it left on storage.",
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llmengine-batch {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    for add in (add_run, add_collect, add_follow, add_validate, add_plan, add_status, add_cancel, add_clean, add_cache):
        add(commands)
    return parser
