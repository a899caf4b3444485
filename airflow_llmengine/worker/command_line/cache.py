"""The commands that look after a cache of answers: ``cache stats`` and ``cache prune``."""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.attempt import require_parquet
from airflow_llmengine.worker.command_line.argument_types import cache_path, seconds, size
from airflow_llmengine.worker.command_line.opening import open_storage
from airflow_llmengine.worker.command_line.parser import Parser, add_command, say
from airflow_llmengine.worker.weights.fetch_progress import shown_bytes

if TYPE_CHECKING:
    from airflow_llmengine.worker.answer_cache.upkeep import CachedOrigin


def add_cache(commands: Any) -> None:
    """Add ``cache`` with its own commands."""
    group = commands.add_parser(
        "cache",
        help="look after a cache of answers",
        description="Look after the answers that runs with --cache-path have kept.",
    )
    inner = group.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    stats = add_command(
        inner,
        "stats",
        _stats,
        "show what a cache holds",
        """\
        Show how many answers a cache has, how much they take, and how old they are: of each model with its settings
        and version of the engine, and in all. Of each file only its end is read.
        """,
    )
    _add_path(stats)
    stats.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    prune = add_command(
        inner,
        "prune",
        _prune,
        "delete old answers, and put small files together",
        """\
        Delete the answers that were written longer ago than --older-than, then the oldest files until no more than
        --max-bytes are left, and put small files together, which many workers have written. Workers may be at work
        meanwhile: an answer that one of them does not find any more is generated again.

        example:
          llmengine-batch cache prune s3://bucket/answers --older-than 30d --max-bytes 500GB
        """,
    )
    _add_path(prune)
    prune.add_argument(
        "--older-than", type=seconds, metavar="AGE", help="12h, 30d ...; by default answers of any age stay"
    )
    prune.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="500MB, 50GB, 20GiB ...; by default a cache may have any size"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be deleted, in whole files")


def _add_path(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("path", metavar="PATH", type=_some_cache_path, help="the cache_path of the jobs")


def _some_cache_path(text: str) -> str:
    path = cache_path(text)
    if path is None:
        raise argparse.ArgumentTypeError("is empty: give the cache_path of the jobs")
    return path


def _stats(options: argparse.Namespace) -> int:
    require_parquet()
    from airflow_llmengine.worker.answer_cache.upkeep import look_at_cache

    found = look_at_cache(open_storage(options), options.path)
    # On a file system the folder of what was pruned is still there.
    origins = [origin for origin in found if origin.files or origin.about is not None]
    if options.json:
        say(json.dumps({"origins": [_as_json(origin) for origin in origins], **_sums(origins)}))
    else:
        for origin in origins:
            say(*_lines(origin))
        sums = _sums(origins)
        say(f"in all: {sums['answers']} answers, {shown_bytes(sums['bytes'])} in {sums['files']} files")
    return ExitCode.DONE


def _prune(options: argparse.Namespace) -> int:
    require_parquet()
    from airflow_llmengine.worker.answer_cache.upkeep import prune

    done = prune(
        open_storage(options),
        options.path,
        now=time.time(),
        older_than_seconds=options.older_than,
        max_bytes=options.max_bytes,
        dry_run=options.dry_run,
    )
    damaged = f", {done.damaged} of them damaged" if done.damaged else ""
    say(
        f"{'would delete' if options.dry_run else 'deleted'} {done.answers} answers; "
        f"{done.files_before} files of {shown_bytes(done.bytes_before)}{damaged} "
        f"{'would be' if options.dry_run else 'are'} {done.files_after} of {shown_bytes(done.bytes_after)}"
    )
    return ExitCode.DONE


def _lines(origin: CachedOrigin) -> list[str]:
    about = origin.about
    name = (
        "not known"
        if about is None
        else f"{about.model} ({about.model_identity}), {about.engine} {about.engine_version}"
    )
    written = "never" if origin.oldest is None else f"from {_moment(origin.oldest)} to {_moment(origin.newest)}"
    damaged = sum(file.summary is None for file in origin.files)
    return [
        name,
        f"  {origin.answers} answers, {shown_bytes(origin.stored_bytes)} in {len(origin.files)} files",
        f"  written {written}",
        f"  {origin.folder}",
        *([f"  {damaged} files are damaged: cache prune deletes them"] if damaged else []),
    ]


def _as_json(origin: CachedOrigin) -> dict[str, Any]:
    return {
        "folder": str(origin.folder),
        "about": None if origin.about is None else origin.about.model_dump(mode="json"),
        "answers": origin.answers,
        "bytes": origin.stored_bytes,
        "files": len(origin.files),
        "damaged_files": sum(file.summary is None for file in origin.files),
        "oldest": origin.oldest,
        "newest": origin.newest,
    }


def _sums(origins: list[CachedOrigin]) -> dict[str, int]:
    return {
        "answers": sum(origin.answers for origin in origins),
        "bytes": sum(origin.stored_bytes for origin in origins),
        "files": sum(len(origin.files) for origin in origins),
    }


def _moment(seconds: float | None) -> str:
    return "?" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
