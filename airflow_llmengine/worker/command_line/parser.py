"""What all commands have in common: how faults of the arguments are told, the log, and the texts of the help."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.command_line.argument_types import engine_args
from airflow_llmengine.worker.logs import is_for_a_launcher, log_end

logger = logging.getLogger(__name__)

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


class Parser(argparse.ArgumentParser):
    """A parser whose own complaint is a bad request too."""

    def error(self, message: str) -> NoReturn:
        """Tell it, in the last line of the log where a launcher reads that, and end with 64."""
        if is_for_a_launcher():
            log_end(logger, f"{self.prog}: {message}")
            self.exit(ExitCode.BAD_REQUEST)
        self.print_usage(sys.stderr)
        self.exit(ExitCode.BAD_REQUEST, f"{self.prog}: {message}\n")


def add_command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], summary: str, description: str
) -> argparse.ArgumentParser:
    """Add one command, with what all of them take.

    Args:
        commands: argparse's subparsers.
        name: What it is called.
        command: Does it; returns the exit code.
        summary: A line for the list of commands.
        description: What it does, for its own help.
    """
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


def add_engine_args(sub: argparse.ArgumentParser) -> None:
    """Add ``--engine-args``."""
    sub.add_argument(
        "--engine-args",
        type=engine_args,
        default={},
        metavar="JSON",
        help="further arguments of vLLM by their Python names, beside those that the request has a field for, as a "
        'JSON object such as {"max_logprobs": 40}; the same for all commands of a job',
    )


def add_table(sub: argparse.ArgumentParser) -> None:
    """Add ``--table``."""
    sub.add_argument(
        "--table",
        metavar="TABLE",
        help="the input is a table, and so is the output: how rows become records and results columns, as a JSON "
        'object such as {"prompt": "Translate: {{ text }}", "parameters": {"max_tokens": 200}}, or a file, a URL, or '
        "env:NAME that has it; the same for all commands of a job",
    )


def say(*lines: str) -> None:
    """Print what the command was asked for; standard output has nothing else."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
