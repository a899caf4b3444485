"""Jobs in an EKS cluster, whose tokens expire: moto's EKS in front of a real cluster, real tasks, a real triggerer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.hooks.eks_access import RENEW_SECONDS
from tests.airflow.started_tasks import TaskServer
from tests.airflow.triggerer_process import Triggerer
from tests.kubernetes.conftest import airflow_of_pods
from tests.kubernetes.deferred_jobs import DeferredJob
from tests.kubernetes.eks_cluster import EksOnCluster
from tests.kubernetes.pod_jobs import PodJob
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.scheduler]

RECORDS = 20
A_MOMENT = RENEW_SECONDS + 2
"""A token that says that it holds for so long is used for two seconds."""


@pytest.fixture(scope="module")
def tasks_of_pods(tmp_path_factory: pytest.TempPathFactory, migrated_database: bytes) -> Iterator[TaskServer]:
    """An Airflow with a triggerer beside it, of this module's own."""
    with airflow_of_pods(tmp_path_factory.mktemp("airflow-eks"), migrated_database) as server:
        yield server


@pytest.fixture
def eks(pod_job: PodJob, tmp_path: Path) -> Iterator[EksOnCluster]:
    """The job's cluster is one of EKS, and nothing else leads there. Nobody is shown a key or a token."""
    eks = EksOnCluster(pod_job.cluster, pod_job.namespace, pod_job.s3, tmp_path / "eks")
    (tmp_path / "tmp").mkdir()
    del pod_job.base_environment["KUBECONFIG"]
    pod_job.base_environment |= {**eks.double.environment, "TMPDIR": str(tmp_path / "tmp")}
    yield eks
    told = pod_job.told() + "".join(path.read_text() for path in (tmp_path / "tmp").iterdir() if path.is_file())
    assert not [secret for secret in (ACCESS_KEY, SECRET_KEY, *eks.tokens) if secret in told]


def test_the_pod_of_a_killed_airflow_worker_is_taken_over_with_another_token(
    pod_job: PodJob, eks: EksOnCluster
) -> None:
    """By the plain operator: the connection names the cluster."""
    job = pod_job
    job.settings["eks"] = eks.double.arguments
    eks.hand_out(A_MOMENT)
    first = job.start()
    job.wait_for_records(5)
    with job.frozen():
        first.kill()
        second = job.start()
        wait_until(lambda: "Taking over the pod" in second.log())
        # The one that it took it over with is refused from now on.
        eks.hand_out(A_MOMENT)
    state, log = second.end()
    assert state == "success", log
    assert job.is_complete()
    assert set(job.generations().values()) == {1}
    assert len(job.watch.names) == 1
    wait_until(lambda: not job.pods())


def test_a_deferred_task_whose_token_has_expired_is_killed_and_waited_for_with_new_ones(
    pod_job: PodJob, eks: EksOnCluster
) -> None:
    job = pod_job
    job.put_input(RECORDS)
    # The pod must not be done before it is frozen, however long a busy machine takes to tell of its first records.
    job.set_speed(2)
    job.arguments |= {**eks.double.arguments, "termination_grace_period": 30}
    triggerer = Triggerer(job.environment)
    deferred = DeferredJob(job, triggerer, "pod_job")
    eks.hand_out(A_MOMENT)
    triggerer.start()
    try:
        scheduler = deferred.start()
        job.wait_for_records(3)
        deferred.wait_for_trigger_log("records done")
        kept = deferred.kept()
        assert "LLMEngineEksPodTrigger" in kept
        (first,) = job.watch.names
        with job.frozen():
            eks.hand_out(A_MOMENT)
            made = len(eks.double.calls)
            wait_until(lambda: len(eks.double.calls) > made + 1)
            assert deferred.state() == "deferred"
            deferred.start("clear:job").end()
        assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    finally:
        triggerer.stop()
    assert "invoking on_kill" in deferred.trigger_log()
    assert job.watch.last(first)["metadata"]["deletionTimestamp"]
    assert job.is_complete(RECORDS)
    assert len(job.watch.names) == 2
    assert job.watch.most_at_work == 1
    assert job.generations().total() <= RECORDS + 1
    wait_until(lambda: not job.pods())
    everything = json.dumps(kept) + deferred.trigger_log()
    for secret in (ACCESS_KEY, SECRET_KEY, *eks.tokens, "certificate-authority-data"):
        assert secret not in everything, secret
