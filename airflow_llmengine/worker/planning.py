"""The plan of a job, with the hardware that its pods would get: what ``llmengine-batch plan`` shows."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from airflow_llmengine.spec.hardware.gpus import Gpu, GpuListing, gpus_of
from airflow_llmengine.spec.hardware.inference import infer_gpus, infer_without_gpus
from airflow_llmengine.spec.plan import plan
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.model_config import read_model

NO_GPUS = "none"
"""As a list of GPU types: pods have no GPU."""

NOT_KNOWN = "          which they would be is not known: say gpu_type in the request, or give --gpu-types"


def gpu_types(text: str) -> tuple[Gpu, ...]:
    """Read the types of GPU that a cluster has, as the connection lists them; empty for ``none``.

    Raises:
        ValueError: It can't be read; the message says why.
    """
    if text.strip() == NO_GPUS:
        return ()
    try:
        listed = gpus_of(TypeAdapter(GpuListing).validate_python(text))
    except ValidationError as error:
        line = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(str(line["msg"]).removeprefix("Value error, ")) from None
    if not listed:
        raise ValueError("it names no type")
    return listed


def planned(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    listed: Sequence[Gpu] | None,
    table: Table | None = None,
) -> list[str]:
    """The plan for a person, one fact a line. Of the model its config is read, and nothing is launched.

    Args:
        storage: Where the model may be.
        request: A checked request.
        listed: The kinds of GPU that the cluster has, the cheapest first; empty: none; None: not known.
        table: How rows become records, and results columns, if it has a table.

    Raises:
        RequestInvalidError: The model fits none of them, or too little is known.
        StorageError: So it is, for a store or the hub did not answer just then.
    """
    if listed is not None and not listed:
        return plan(request, infer_without_gpus(request, read_model(storage, request)), table).lines()
    if listed is None and request.gpu_type is None:
        # It may be for workers that have what their machine has.
        lines = plan(request, table=table).lines()
        at = next(index for index, line in enumerate(lines) if line.startswith("GPUs"))
        return [*lines[: at + 1], NOT_KNOWN, *lines[at + 1 :]]
    model = read_model(storage, request)
    try:
        return plan(request, infer_gpus(request, model, listed or ()), table).lines()
    except RequestInvalidError as error:
        if model.facts is None and model.may_pass:
            raise StorageError(f"What the job needs is not known: {error}, or try again.") from None
        raise
