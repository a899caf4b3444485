"""Where the worker's log lines go: standard error, for people or, line by line as JSON, for a launcher."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

LogFormat = Literal["text", "json"]

PACKAGE_LOGGER = "airflow_llmengine"

LONGEST_END = 1800
"""Bytes of the message, as JSON, in a line that surely fits whole into the last 2048 bytes of a container's log."""


class JSONLineFormatter(logging.Formatter):
    """One JSON object a line: ``{"level", "logger", "message"}``."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one log record, its traceback included, without a line break."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        return json.dumps({"level": record.levelname, "logger": record.name, "message": message})


def log_end(logger: logging.Logger, message: str) -> None:
    """Say at ERROR, as a program's last line, why it ends: a launcher takes that line for the reason.

    Of a container that failed, Kubernetes keeps the end of the log and cuts it off in the middle of a line. So for a
    launcher, a long line is followed by its own beginning.
    """
    logger.error("%s", message)
    if not is_for_a_launcher() or len(json.dumps(message)) <= LONGEST_END:
        return
    beginning = message[:LONGEST_END]
    while len(json.dumps(beginning)) > LONGEST_END:
        beginning = beginning[: len(beginning) * 7 // 8]
    logger.error("%s … (the whole of it is in the log)", beginning)


def is_for_a_launcher() -> bool:
    """Whether log lines are JSON."""
    return any(
        isinstance(handler.formatter, JSONLineFormatter) for handler in logging.getLogger(PACKAGE_LOGGER).handlers
    )


def _without_text(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0] is not None:
        record.msg, record.args = f"an exception was not fetched: {record.exc_info[0].__name__}", ()
        record.exc_info = record.exc_text = None
    return True


def configure_logs(log_format: LogFormat, *, verbose: bool = False) -> None:
    """Send this package's log lines to standard error.

    Args:
        log_format: ``text`` for people, ``json`` for a launcher that reads line by line.
        verbose: Show DEBUG lines, which may quote prompts and outputs.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JSONLineFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    )
    logger = logging.getLogger(PACKAGE_LOGGER)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    # It shows exceptions that nobody fetched with their texts, which may be an engine's, and quote a prompt.
    loop = logging.getLogger("asyncio")
    loop.handlers[:] = [handler]
    loop.propagate = False
    loop.filters[:] = [] if verbose else [_without_text]
