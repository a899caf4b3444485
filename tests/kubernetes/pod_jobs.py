"""Jobs whose workers run in pods of a real cluster and whose data is on S3, driven by Airflow's own task processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.airflow.started_tasks import StartedTask, TaskServer
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.jobs_on_s3 import aws_connection
from tests.kubernetes.pod_watch import PodWatch
from tests.storage.s3_server import S3Server
from tests.waiting import wait_until

RECORDS = 60
WORD = "zanzibar"
"""In every prompt, and nowhere else."""
ONE_A_CHUNK = 200_000
"""Tokens that a record asks for, so that each is a chunk by itself."""


class PodJob:
    """A job of the stand-in engine: its input and output in a bucket, and a connection that runs it in pods.

    Args:
        cluster: The cluster.
        namespace: Where its pods are made.
        s3: A store that pods reach.
        folder: A folder that pods write to; the engine notes down there what it generates.
        server: Starts Airflow's processes.
        host_python: How pods get this machine's Python.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        namespace: str,
        s3: S3Server,
        folder: Path,
        server: TaskServer,
        host_python: HostPython,
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.s3 = s3
        self.generated = folder / "generated.log"
        self.watch = PodWatch(cluster, namespace)
        self.bucket = s3.new_bucket()
        self.arguments: dict[str, Any] = {
            "input_data_path": f"s3://{self.bucket}/input.jsonl",
            "output_data_path": f"s3://{self.bucket}/output.json",
            "model_config": {"model": "stand-in"},
            "startup_check_interval_seconds": 1,
            "termination_grace_period": 20,
        }
        self.worker_environment = {
            "LLMENGINE_ECHO_LOG": str(self.generated),
            "LLMENGINE_ECHO_CAPACITY": "1",
            "LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.05",
        }
        self.settings: dict[str, Any] = {
            "launcher": "kubernetes",
            "engine": "echo",
            "python": host_python.python,
            "pod_template": host_python.pod_template(),
            "namespace": namespace,
            "storage_conn_id": "store",
            "pod_credentials": "connection",
            "cluster": {"accelerator": "none"},
        }
        self.base_environment = {
            **server.environment,
            "KUBECONFIG": cluster.kubeconfig,
            "AIRFLOW_CONN_STORE": aws_connection(s3),
        }
        self.run_id = f"run-{self.bucket}"
        self.started: list[StartedTask] = []
        self._server = server
        self._folder = folder
        self.put_input(RECORDS)

    def put_input(self, records: int, max_tokens: int = 4) -> None:
        lines = [json.dumps({"prompt": f"{WORD} {index}", "max_tokens": max_tokens}) for index in range(records)]
        self.s3.client.put_object(Bucket=self.bucket, Key="input.jsonl", Body="\n".join(lines).encode())

    def set_speed(self, seconds_per_record: float) -> None:
        """How fast pods that are made from now on are."""
        self.worker_environment["LLMENGINE_ECHO_SECONDS_PER_RECORD"] = str(seconds_per_record)

    @property
    def connection(self) -> str:
        """The connection that runs it, as Airflow reads it from the environment."""
        return json.dumps(
            {"conn_type": "llmengine", "extra": {"worker_environment": self.worker_environment, **self.settings}}
        )

    @property
    def environment(self) -> dict[str, str]:
        """Of Airflow's processes, now."""
        return {
            **self.base_environment,
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": self.connection,
            "TEST_ARGUMENTS": json.dumps(self.arguments),
        }

    # Airflow's processes

    def start(self, command: str = "run") -> StartedTask:
        """Start the one task of ``dags/pod_job.py``; the command is one of ``tests/airflow/task_process.py``."""
        return self._start("task", command, "pod_job", "job", self.run_id)

    def run(self, command: str = "run") -> tuple[str, str]:
        """Start it, and wait for its end; gives the task's state, and all that was logged."""
        return self.start(command).end()

    def start_group(self, *commands: str) -> StartedTask:
        """Start a run of ``dags/pod_group.py``; the commands are those of ``tests/airflow/scheduler_process.py``."""
        return self.start_run("pod_group", *commands)

    def start_run(self, dag_id: str, *commands: str) -> StartedTask:
        """The same for another DAG."""
        return self._start("group", dag_id, self.run_id, *commands)

    def _start(self, call: str, *arguments: str) -> StartedTask:
        log = self._folder / f"task-{len(self.started)}.log"
        started = self._server.start(call, *arguments, environment=self.environment, log=log)
        self.started.append(started)
        return started

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the workers that run now, so that they neither go on nor end meanwhile."""
        workers = self._workers()
        assert workers
        for worker in workers:
            worker.suspend()
        try:
            yield
        finally:
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.resume()

    def kill_workers(self) -> None:
        """Kill the workers that run now."""
        for worker in self._workers():
            with suppress(psutil.NoSuchProcess):
                worker.kill()

    def _workers(self) -> list[psutil.Process]:
        """The processes in the job's pods, as this machine, which is their node, sees them."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("LLMENGINE_ECHO_LOG") == str(self.generated):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    # What can be seen from outside

    def pods(self) -> list[Any]:
        return self.cluster.pods(self.namespace)

    def kept(self) -> list[Any]:
        """The pods that nobody has deleted. One that never started may show for a minute after that."""
        return [pod for pod in self.pods() if pod.metadata.deletion_timestamp is None]

    def generations(self) -> Counter[int]:
        """How often each record was generated, over all pods."""
        lines = self.generated.read_text().splitlines() if self.generated.exists() else []
        return Counter(int(line.split()[0]) for line in lines)

    def wait_for_records(self, count: int) -> None:
        wait_until(lambda: self.generations().total() >= count, seconds=90)

    def output(self, name: str = "output.json") -> bytes | None:
        """The output; None where there is none."""
        try:
            body: bytes = self.s3.client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        except self.s3.client.exceptions.NoSuchKey:
            return None
        return body

    def is_complete(self, records: int = RECORDS) -> bool:
        """Whether each record's answer stands in its place."""
        texts = [result["choices"][0]["text"] for result in json.loads(self.output() or b"[]")]
        return texts == [f"{WORD} {index}" for index in range(records)]

    def told(self) -> str:
        """All that anybody may see of the job: logs, pods, events, and Airflow's database."""
        events = self.cluster.core.list_namespaced_event(self.namespace, _preload_content=False).data.decode()
        database = (Path(self._server.environment["AIRFLOW_HOME"]) / "airflow.db").read_bytes().decode("latin-1")
        return "\n".join([*(started.log() for started in self.started), self.watch.text(), events, database])
