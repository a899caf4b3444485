"""The life of a worker's pod under Airflow: real task processes, the real worker, a real cluster."""

from __future__ import annotations

import pytest

from tests.kubernetes.pod_jobs import RECORDS, PodJob
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


def test_the_pod_deleted_from_outside(pod_job: PodJob) -> None:
    """The first attempt says what happened, and the retry resumes."""
    first = pod_job.start()
    pod_job.wait_for_records(5)
    (pod,) = pod_job.pods()
    pod_job.cluster.delete_pod(pod_job.namespace, pod.metadata.name)
    state, log = first.end()
    assert state == "up_for_retry", log
    assert "PodDeletedError" in log
    assert pod_job.output() is None
    pod_job.set_speed(0)
    state, log = pod_job.run()
    assert state == "success", log
    assert pod_job.is_complete()
    # The record that was being made when the worker was told to stop may have been made twice.
    assert pod_job.generations().total() <= RECORDS + 1
    assert len(pod_job.watch.names) == 2
    assert pod_job.watch.most_at_work == 1
    wait_until(lambda: not pod_job.pods())
