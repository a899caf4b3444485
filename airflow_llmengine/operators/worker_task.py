"""What every task that runs a worker has in common: where it runs is the connection's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf

from airflow_llmengine.operators.worker_pod import WorkerEnd, WorkerPodMixin

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmengine.exceptions import LLMEngineError
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.hooks.local_launch import LocalLauncher
    from airflow_llmengine.hooks.local_worker import WorkerOutcome
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.status import JobStatus


class WorkerTaskMixin(WorkerPodMixin):
    """Runs a worker in a process on this machine or in a pod, as the connection's ``launcher`` says.

    A task that is deferred while its worker runs in a pod goes on in ``_conclude``, as one that is not.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._launcher: LocalLauncher | None = None

    def on_kill(self) -> None:
        """Stop the worker, when Airflow ends the task. Called in a signal handler, in the middle of ``execute``."""
        if self._launcher is not None:
            self._launcher.stop()
        super().on_kill()

    def _prepare(self, hook: LLMEngineHook) -> None:
        """Make ready for a launch, and refuse a connection with which there can be none."""
        if hook.settings.launcher == "kubernetes":
            self._apply_connection(hook.settings)
            return
        from airflow_llmengine.hooks.local_launch import LocalLauncher

        self._refuse_without_pods()
        self._launcher = launcher = LocalLauncher(
            hook.settings,
            grace_seconds=self.termination_grace_period or conf.getint("llmengine", "grace_seconds"),
            runtime_directory=conf.get("llmengine", "runtime_directory"),
            log=self.log.log,
        )
        # on_kill could not reach it until now.
        if self._ended_by_airflow:
            launcher.stop()

    def _end_leftovers(self, path: str, replica: int | None, series: str) -> None:
        """End what an earlier attempt of this worker left running on this machine. A pod is found when one is made."""
        if self._launcher is not None:
            from airflow_llmengine.hooks.leftovers import WorkerMark

            self._launcher.end_leftovers(WorkerMark(path, replica, series))

    def _run_worker(
        self,
        context: Context,
        hook: LLMEngineHook,
        attempt: WorkerAttempt,
        request: CreateBatchCompletionsV1Request,
    ) -> WorkerEnd:
        """Run the worker to its end.

        Raises:
            TaskDeferred: The trigger waits for its pod; ``_conclude`` is called when that has ended.
            LLMEngineError: It could not be started, or was ended before.
        """
        if self._launcher is None:
            return self._run_pod(context, hook, attempt, request)
        from airflow_llmengine.operators.staging import encode_request

        outcome = self._launcher.run(attempt, request=encode_request(request), storage_options=hook.storage_options)
        return LocalEnd(outcome)


class LocalEnd(WorkerEnd):
    """How a worker's process on this machine ended."""

    def __init__(self, outcome: WorkerOutcome) -> None:
        self._outcome = outcome

    @property
    def done(self) -> bool:
        """Whether it said that nothing is left to do for it."""
        return self._outcome.exit_code == 0

    @property
    def said(self) -> str:
        """The worker's last word on why it failed; may be empty."""
        return self._outcome.last_error

    def failure(
        self, attempt: WorkerAttempt, status: JobStatus, *, series: str | None, launched_by: str
    ) -> LLMEngineError:
        """The exception for a worker that ended without a result."""
        from airflow_llmengine.hooks.job_failure import job_failure

        return job_failure(
            self._outcome.exit_code,
            self._outcome.last_error,
            handle=attempt.handle,
            deadline=attempt.deadline,
            status=status,
            series=series,
            launched_by=launched_by,
        )
