"""What the pods of a job get, worked out before anything is launched, and told in the task's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import ModelSizeUnknownError, RequestRefusedError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.spec.hardware.inference import Hardware, Model
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request

ENGINE = "vllm"
"""The engine whose rules these are. What another one needs is not known: it gets what the request gives."""

_CACHE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "LLMENGINE_MODEL_CACHE")


def is_worked_out(settings: ConnectionSettings) -> bool:
    """Whether the hardware of a job is worked out: a worker on Airflow's own machine has what that has."""
    return settings.launcher == "kubernetes" and settings.engine == ENGINE


def find_model(hook: LLMEngineHook, request: CreateBatchCompletionsV1Request) -> Model | None:
    """Read what can be known of the job's model from here; None: nothing is worked out for this connection."""
    from airflow_llmengine.storage.model_config import read_model

    return read_model(hook.storage(), request) if is_worked_out(hook.settings) else None


def worked_out(
    settings: ConnectionSettings, request: CreateBatchCompletionsV1Request, model: Model
) -> tuple[CreateBatchCompletionsV1Request, Hardware]:
    """The request completed with how its GPUs share the model, and what its pods get.

    Raises:
        RequestRefusedError: What the request gives does not go together, or the model fits nowhere; with the numbers.
        ModelSizeUnknownError: Too little is given, and the model's config could not be read just then.
    """
    from airflow_llmengine.spec.hardware.inference import completed_request, infer_gpus, infer_without_gpus
    from airflow_llmengine.spec.validation import RequestInvalidError

    on_disk = _weights_on_disk(settings, request)
    try:
        if settings.cluster.accelerator == "none":
            return request, infer_without_gpus(request, model, weights_on_disk=on_disk)
        hardware = infer_gpus(request, model, settings.cluster.gpus, weights_on_disk=on_disk)
    except RequestInvalidError as error:
        if model.facts is None and model.may_pass:
            raise ModelSizeUnknownError(f"What the job needs is not known: {error}, or try again.") from None
        raise RequestRefusedError(f"The request can't be run:\n{error}") from None
    return completed_request(request, hardware), hardware


def tell(request: CreateBatchCompletionsV1Request, hardware: Hardware, log: Logger) -> None:
    """The result and its arithmetic, for whoever reads the task's log."""
    arithmetic = "\n".join(f"- {line}" for line in hardware.explanation)
    log.info("Each worker gets %s:\n%s", hardware.summary(request), arithmetic)


def encode_model(model: Model | None) -> dict[str, Any] | None:
    """What is known of a model, for an XCom."""
    if model is None:
        return None
    facts = None if model.facts is None else model.facts.model_dump(mode="json")
    return {"facts": facts, "source": model.source}


def decode_model(encoded: dict[str, Any] | None) -> Model | None:
    """The model that ``encode_model`` wrote; None if there is none."""
    from airflow_llmengine.spec.hardware.inference import Model
    from airflow_llmengine.spec.hardware.model_facts import ModelFacts

    if encoded is None:
        return None
    facts = encoded["facts"]
    return Model(None if facts is None else ModelFacts.model_validate(facts), encoded["source"])


def _weights_on_disk(settings: ConnectionSettings, request: CreateBatchCompletionsV1Request) -> bool:
    """Whether the pod's own disk takes the weights: they are fetched, and no volume is there to keep them."""
    from airflow_llmengine.storage.urls import LOCAL, parse_url

    if settings.cluster.cache_volume is not None or any(
        name in settings.worker_environment for name in _CACHE_VARIABLES
    ):
        return False
    model = request.model_cfg
    if model.checkpoint_path is not None:
        return parse_url(model.checkpoint_path).protocol != LOCAL
    return not model.model.startswith(("/", "."))
