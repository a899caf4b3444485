"""What one attempt of a worker is told, wherever it runs: in a process on this machine, or in a pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from airflow_llmengine.spec.job_state import JobHandle

WORKER_MODULE = "airflow_llmengine.worker"


@dataclass(frozen=True, slots=True)
class WorkerAttempt:
    """One attempt of one replica, or of the worker that puts the output together. It holds nothing private."""

    handle: JobHandle
    """What is joined: this generation, or none."""
    owner: str
    series: str
    deadline: float
    """Seconds since the epoch after which nothing may run."""
    max_error_rate: float | None
    replica: int | None = 0
    """Which share is done; None: the shares that were done are put together."""
    replicas: int = 1
    launched_by: str = "the task"
    """What to clear for a new launch."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine."""
    cache_path: str | None = None
    """Where answers are kept for later runs."""
    table: str | None = None
    """How rows become records, and results columns, as the worker is told of it: JSON text, or where that is."""

    def arguments(self, source: str, *, grace_seconds: int) -> list[str]:
        """The worker's command line, from its command on.

        Args:
            source: Where it finds the request.
            grace_seconds: How long it may take to save its work.
        """
        arguments = [
            "collect" if self.replica is None else "run",
            source,
            f"--generation={self.handle.generation}",
            f"--owner={self.owner}",
            f"--grace-seconds={grace_seconds}",
            "--log-format=json",
        ]
        if self.replica is not None:
            arguments += [
                "--launched",
                f"--series={self.series}",
                f"--replica={self.replica}",
                f"--replicas={self.replicas}",
            ]
            if self.cache_path is not None:
                arguments.append(f"--cache-path={self.cache_path}")
        if self.max_error_rate is not None:
            arguments.append(f"--max-error-rate={self.max_error_rate!r}")
        return arguments + self._job_arguments()

    def _job_arguments(self) -> list[str]:
        """What all workers of the job are told beside the request."""
        engine = [f"--engine-args={json.dumps(self.engine_args)}"] if self.engine_args else []
        return engine if self.table is None else [*engine, f"--table={self.table}"]

    def follower_arguments(self, source: str, *, node: int, leader: str, grace_seconds: int) -> list[str]:
        """The command line of a further node of the replica.

        Args:
            source: Where it finds the request.
            node: Which node it is, from 1.
            leader: Name or address of the first node.
            grace_seconds: How long it may take to end.
        """
        return [
            "follow",
            source,
            f"--node={node}",
            f"--leader={leader}",
            f"--grace-seconds={grace_seconds}",
            "--log-format=json",
            *self._job_arguments(),
        ]

    def encode(self) -> dict[str, Any]:
        """As JSON, for a task that is deferred."""
        return {
            "handle": self.handle.model_dump(mode="json"),
            "owner": self.owner,
            "series": self.series,
            "deadline": self.deadline,
            "max_error_rate": self.max_error_rate,
            "replica": self.replica,
            "replicas": self.replicas,
            "launched_by": self.launched_by,
            "engine_args": dict(self.engine_args),
            "cache_path": self.cache_path,
            "table": self.table,
        }

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Self:
        """What ``encode`` made."""
        from airflow_llmengine.spec.job_state import JobHandle

        return cls(**{**encoded, "handle": JobHandle.model_validate(encoded["handle"])})
