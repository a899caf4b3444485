"""A name for a DAG run that every run has, and that may be a part of a path.

``ds`` and ``ts`` are missing in runs of partitions and in runs that assets triggered.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Protocol

MAX_SLUG_LENGTH = 100
"""Most characters of a slug: file systems take 255 bytes for each part of a path, and it is only a part of one."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


class Run(Protocol):
    """What is read of a DAG run: as a task's context has it, or as the metadata database does."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    @property
    def logical_date(self) -> datetime | None:
        """The run's logical date."""

    @property
    def partition_key(self) -> str | None:
        """Which partition the run is for."""


def run_slug(dag_run: Run) -> str:
    """What tells a DAG's runs apart, as a part of a path: the partition key, else the logical date, else the run's id.

    In templates it is a macro, ``{{ macros.llmengine.run_slug(dag_run) }}``. A retry, a clear and a backfill of the
    same partition or date have the same slug, so that they find the output that stands. Points in time are written in
    one form, ``20260105T030000``, as Airflow's ``ts_nodash``, and with a zone in UTC; so hourly runs differ, and a DAG
    that becomes partitioned keeps its paths. Letters, digits and ``.``, ``_``, ``=``, ``-`` stay as they are. Where
    something else had to be replaced or cut off, eight digits of a checksum follow, so that two keys never share a
    slug.

    Args:
        dag_run: ``dag_run`` of the task's context.

    Returns:
        At most ``MAX_SLUG_LENGTH`` characters; no slash among them, and neither a dot nor an underscore in front, as
        readers of folders pass such names over.
    """
    if dag_run.partition_key:
        return _safe(dag_run.partition_key)
    if dag_run.logical_date is not None:
        return _timestamp(dag_run.logical_date)
    return _safe(dag_run.run_id)


def _safe(key: str) -> str:
    if _TIMESTAMP.fullmatch(key):
        try:
            return _timestamp(datetime.fromisoformat(key))
        except ValueError:
            pass  # such as the 31st of February
    slug = _UNSAFE.sub("-", key).lstrip("._-")
    if slug == key and len(slug) <= MAX_SLUG_LENGTH:
        return slug
    checksum = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug[: MAX_SLUG_LENGTH - 9].rstrip('-')}-{checksum}".lstrip("-")


def _timestamp(moment: datetime) -> str:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.strftime("%Y%m%dT%H%M%S.%f" if moment.microsecond else "%Y%m%dT%H%M%S")
