"""The trigger: waits for a job in the triggerer, without a worker slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.job_decision import OnTimeout
from airflow_llmengine.hooks.job_watch import JobWatch, job_of, seconds_of, terms_of
from airflow_llmengine.hooks.llmengine import LLMEngineHook


class LLMEngineBatchCompletionsTrigger(BaseTrigger):
    """Waits until there is something for the sensor to do, and wakes it.

    The event is a wake-up and no verdict: ``{"outcome", "now", "first_look"}``, or ``{"error", "message",
    "first_look"}`` with the name of an exception of this provider. The sensor looks at storage again, compares the
    output with its manifest, which may take long, and decides. Only the job's cancellation past its deadline is done
    here, since the sensor may have to wait for a worker slot.

    What it logs is in the task's log, among what the task itself logged.

    Args:
        job: A job handle or an ``output_data_path``.
        llmengine_conn_id: Connection of type ``llmengine``; read here, when the trigger runs.
        max_runtime_sec: As the sensor's.
        on_timeout: As the sensor's.
        timeout: As the sensor's, in seconds; None: as long as the job may run.
        poke_interval: Seconds between two looks.
        first_look: Seconds since the epoch at which the sensor began to wait. None if it was started from the trigger:
            then this is told from the trigger's own timeout, which Airflow keeps as a point in time.
        trigger_timeout: Seconds after its start at which Airflow ends this trigger, if it was started without a task.
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str,
        llmengine_conn_id: str = LLMEngineHook.default_conn_name,
        max_runtime_sec: float | str | None = None,
        on_timeout: OnTimeout = "cancel",
        timeout: float | None = None,
        poke_interval: float = 30.0,
        first_look: float | None = None,
        trigger_timeout: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.llmengine_conn_id = llmengine_conn_id
        self.max_runtime_sec = max_runtime_sec
        self.on_timeout = on_timeout
        self.timeout = timeout
        self.poke_interval = poke_interval
        self.first_look = first_look
        self.trigger_timeout = trigger_timeout
        # The triggerer sets it before it runs the trigger.
        self.timeout_after: datetime | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments: no credentials are among them."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "job": self.job,
                "llmengine_conn_id": self.llmengine_conn_id,
                "max_runtime_sec": self.max_runtime_sec,
                "on_timeout": self.on_timeout,
                "timeout": self.timeout,
                "poke_interval": self.poke_interval,
                "first_look": self.first_look,
                "trigger_timeout": self.trigger_timeout,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the job until something is to be done; then fire one event."""
        first_look = self._first_look()
        try:
            watch = JobWatch(
                job_of(self.job),
                terms_of(first_look, max_runtime_sec=seconds_of(self.max_runtime_sec), timeout=self.timeout),
                on_timeout=self.on_timeout,
                who=self._who(),
                log=self.log,
            )
            hook: LLMEngineHook | None = None
            while True:
                if hook is None or watch.wants_new_hook:
                    hook = LLMEngineHook(self.llmengine_conn_id)
                    await hook.aread_settings()
                now = time.time()
                # Storage's libraries, and the storage connection's, block.
                look = await asyncio.to_thread(watch.look, hook, now=now)
                if look.decision.outcome != "wait":
                    break
                await asyncio.sleep(self.poke_interval)
        except LLMEngineError as error:
            yield _event({"error": type(error).__name__, "message": str(error), "first_look": first_look})
            return
        yield _event({"outcome": look.decision.outcome, "now": now, "first_look": first_look})

    async def on_kill(self) -> None:
        """Leave the job alone: the sensor waits for it, and somebody else launched it."""
        self.log.info("The sensor was ended while it waited. The job goes on: it belongs to whoever launched it.")

    def _first_look(self) -> float:
        if self.first_look is not None:
            return self.first_look
        if self.timeout_after is not None and self.trigger_timeout is not None:
            return self.timeout_after.timestamp() - self.trigger_timeout
        return time.time()

    def _who(self) -> str:
        instance = self.task_instance
        return "" if instance is None else f"{instance.dag_id}/{instance.task_id}"


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
