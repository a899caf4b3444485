"""From a checked request to a launched job, as every task does that launches one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.operators.attempt_options import TaskOptions
    from airflow_llmengine.spec.hardware.inference import Model
    from airflow_llmengine.spec.manifest import Manifest
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.launch import Launch

POD_FIELDS = ("cpus", "memory", "storage", "gpus", "gpu_type", "nodes_per_worker", "priority")
"""Fields of a request that say what a pod gets. A process on this machine has what the machine has."""


def series_of(ti: Any) -> str:
    """Names a task instance's series of attempts: max_tries grows when it is cleared, and stays when it is retried."""
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.max_tries)))


def are_siblings(series: str, other: str) -> bool:
    """Whether two series of attempts are of two mapped tasks of one run.

    Those of a task that was cleared since are not: what it is mapped over may have changed, and the indexes with it.
    """
    one, two = series.rsplit("/", 2), other.rsplit("/", 2)
    return len(one) == len(two) == 3 and (one[0], one[2]) == (two[0], two[2]) and one[1] != two[1]


def inline_limit(hook: LLMEngineHook) -> int:
    """Bytes of ``content`` that go along with the request; none where the request is seen by whoever sees a pod."""
    if hook.settings.launcher == "kubernetes":
        return 0
    return int(conf.getint("llmengine", "max_inline_content_bytes"))


def launch(
    hook: LLMEngineHook,
    request: CreateBatchCompletionsV1Request,
    *,
    owner: str,
    series: str,
    options: TaskOptions,
    log: Logger,
) -> tuple[Launch, CreateBatchCompletionsV1Request, Model | None]:
    """Launch the job, or find that it is done, and say so in the log.

    Nothing is launched whose pods could not have what they need.

    Returns:
        The launch; the request as the workers are given it: large ``content`` is staged on storage; and what is known
        of its model, where something has to run and that matters.

    Raises:
        LLMEngineError: See ``LLMEngineHook.create`` and ``worker_hardware.worked_out``.
    """
    from airflow_llmengine.operators.staging import staged_content
    from airflow_llmengine.operators.worker_hardware import find_model, tell, worked_out

    model: Model | None = None

    def work_out() -> None:
        nonlocal model
        model = find_model(hook, request)
        if model is not None:
            tell(*worked_out(hook.settings, request, model), log)

    with staged_content(hook.storage(), request, inline_limit(hook)) as request:
        launched = hook.create(
            request,
            owner=owner,
            series=series,
            if_done=options.if_done,
            overwrite=options.overwrite,
            engine_args=options.engine_args,
            table=options.table,
            before_writing=work_out,
            is_sibling=lambda other: are_siblings(series, other),
        )
    if launched.manifest is None:
        _tell_launch(launched, request, log, local=hook.settings.launcher == "local")
    else:
        _tell_answer(launched.manifest, log)
    return launched, request, model


def _tell_launch(launched: Launch, request: CreateBatchCompletionsV1Request, log: Logger, *, local: bool) -> None:
    log.info(
        "%s job %s, generation %d, of %s; it must be done by %s.",
        "Resuming" if launched.resumed else "Starting",
        launched.handle.fingerprint,
        launched.handle.generation,
        launched.handle.path,
        _when(launched.deadline),
    )
    for_pods = [name for name in POD_FIELDS if request.is_given(name)]
    if local and for_pods:
        log.info("%s: for pods; a local worker has what this machine has.", ", ".join(for_pods))


def _tell_answer(manifest: Manifest, log: Logger) -> None:
    log.info(
        "Answered from storage: %s stands already, of this very job, since %s: %d records, %d of them failed. "
        "To make it anew, set if_done='regenerate' and clear the task.",
        manifest.output_data_path,
        _when(manifest.finished),
        manifest.records,
        manifest.failed,
    )


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
