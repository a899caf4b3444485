"""A real cluster, the one that ``KUBECONFIG`` names; tests/conftest.py skips its tests where none is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.airflow.conftest import airflow_environment, migrated_database
from tests.airflow.started_tasks import TaskServer, task_server
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.pod_jobs import PodJob
from tests.storage.s3_server import S3Server

__all__ = ["airflow_environment", "migrated_database"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster's API."""
    cluster = Cluster(os.environ["KUBECONFIG"])
    yield cluster
    cluster.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Name of a namespace that no other test has; all in it is gone afterwards."""
    name = cluster.new_namespace()
    yield name
    cluster.delete_namespace(name)


@pytest.fixture
def node_gpus(cluster: Cluster) -> Callable[[int], AbstractContextManager[None]]:
    """Gives contexts in which the node advertises so many GPUs."""
    return cluster.gpus


@pytest.fixture
def silent_node(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A node without a kubelet, which takes no pods but those that are put on it by name."""
    taint = {"key": namespace, "effect": "NoSchedule"}
    cluster.core.create_node({"metadata": {"name": namespace}, "spec": {"taints": [taint]}})
    yield namespace
    cluster.core.delete_node(namespace)


@pytest.fixture
def shared_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for input and output, mounted into the pods at its own path.

    Whatever a test makes in it, a job directory too, the pods' user may change: jobs have one user elsewhere.
    """
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    before = os.umask(0)
    yield folder
    os.umask(before)


@pytest.fixture
def host_python_pod(shared_folder: Path) -> HostPython:
    """Pods with this machine's Python and the shared folder."""
    return HostPython(shared=(shared_folder,))


@pytest.fixture(scope="session")
def _s3_server_for_pods(cluster: Cluster) -> Iterator[S3Server]:
    server = S3Server(host=cluster.node_address)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_for_pods(_s3_server_for_pods: S3Server) -> Iterator[S3Server]:
    """S3 that pods reach too; take a ``new_bucket``."""
    _s3_server_for_pods.reset()
    yield _s3_server_for_pods
    _s3_server_for_pods.reset()


@contextmanager
def airflow_of_pods(home: Path, database: bytes) -> Iterator[TaskServer]:
    """Starts the tasks of ``dags``, over a metadata database in a folder."""
    (home / "airflow.db").write_bytes(database)
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        # What is encrypted could not be searched for secrets.
        "AIRFLOW__CORE__FERNET_KEY": "",
        # A task learns of a clear by its supervisor's next heartbeat.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }
    with task_server(environment) as server:
        yield server


@pytest.fixture(scope="session")
def tasks_of_pods(tmp_path_factory: pytest.TempPathFactory, migrated_database: bytes) -> Iterator[TaskServer]:
    """Starts the tasks of ``dags``. One metadata database for all tests: each has a run of its own."""
    with airflow_of_pods(tmp_path_factory.mktemp("airflow-of-pods"), migrated_database) as server:
        yield server


@pytest.fixture
def pod_job(
    cluster: Cluster,
    namespace: str,
    s3_for_pods: S3Server,
    shared_folder: Path,
    host_python_pod: HostPython,
    tasks_of_pods: TaskServer,
) -> Iterator[PodJob]:
    """A job that Airflow's own task processes run in pods; all that happens to its pods is noted down."""
    job = PodJob(
        cluster=cluster,
        namespace=namespace,
        s3=s3_for_pods,
        folder=shared_folder,
        server=tasks_of_pods,
        host_python=host_python_pod,
    )
    with job.watch:
        yield job
        for started in job.started:
            started.kill()
