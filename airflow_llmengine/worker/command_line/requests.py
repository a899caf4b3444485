"""The commands that look at a request and launch nothing: validate and plan."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.hardware.gpus import Gpu
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.command_line.opening import open_storage, read_request, read_table
from airflow_llmengine.worker.command_line.parser import REQUEST_HELP, add_command, add_engine_args, add_table, say
from airflow_llmengine.worker.planning import gpu_types, planned


def add_validate(commands: Any) -> None:
    """Add ``validate``."""
    sub = add_command(
        commands,
        "validate",
        _validate,
        "say whether a request can be run",
        """\
        Check a request without launching anything. Every refusal is one line: the field, what is wrong with it,
        and what to use instead. Prints "valid" and exits 0, or prints the refusals and exits 64.
        """,
    )
    sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
    add_engine_args(sub)
    add_table(sub)


def add_plan(commands: Any) -> None:
    """Add ``plan``."""
    sub = add_command(
        commands,
        "plan",
        _plan,
        "show what a request will ask for",
        """\
        Print the replicas, hardware and deadline of a request, and the arithmetic behind the hardware. Nothing is
        read but the request and, if its GPUs are known, the model's config; nothing is launched. Exits 64 if the
        model does not fit, and says by how much.
        """,
    )
    sub.add_argument("request", metavar="REQUEST", help=REQUEST_HELP)
    add_engine_args(sub)
    add_table(sub)
    sub.add_argument(
        "--gpu-types",
        type=_gpu_types,
        metavar="TYPES",
        help="the types of GPU that the cluster has, the cheapest first, as in gpu_types of the connection's "
        "field cluster: names between commas, or JSON; none: workers without GPUs. Not needed for a request "
        "with a gpu_type",
    )


def _validate(options: argparse.Namespace) -> int:
    _, table = _request(open_storage(options), options)
    # It comes with the extra that tables need where the worker runs, which may be elsewhere.
    if table is not None and importlib.util.find_spec("jinja2") is not None:
        from airflow_llmengine.worker.tables.row_templates import require_templates

        require_templates(table)
    say("valid")
    return ExitCode.DONE


def _plan(options: argparse.Namespace) -> int:
    storage = open_storage(options)
    request, table = _request(storage, options)
    say(*planned(storage, request, options.gpu_types, table))
    return ExitCode.DONE


def _request(storage: Storage, options: argparse.Namespace) -> tuple[CreateBatchCompletionsV1Request, Table | None]:
    table = read_table(storage, options.table)
    return validate_request(read_request(storage, options.request), table), table


def _gpu_types(text: str) -> tuple[Gpu, ...]:
    try:
        return gpu_types(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
