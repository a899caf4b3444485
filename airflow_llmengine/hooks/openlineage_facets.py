"""What OpenLineage is told of a job: its input, its output, and a run facet. Nothing of prompts or answers.

Imported only by who was asked for it, as ``apache-airflow-providers-openlineage`` need not be installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define, field
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import RunFacet, output_statistics_output_dataset

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.hooks.llmengine import read_engine_args, read_table
from airflow_llmengine.hooks.openlineage_names import dataset_name

if TYPE_CHECKING:
    from airflow_llmengine.spec.manifest import Manifest

FACET = "llmengine"
"""The run facet's name."""


@define
class LLMEngineRunFacet(RunFacet):  # type: ignore[misc]
    """The job of a run. What is known only of a job that has succeeded is null until then."""

    model: str | None = None
    model_identity: str | None = None
    """The weights that were loaded: a hub revision, or a digest of a local checkpoint."""
    engine: str | None = None
    engine_version: str | None = None
    parameters: dict[str, Any] = field(factory=dict)
    """How the model is loaded and asked: ``model_config`` without its chat template, ``engine_args``, and a table's
    ``parameters``, as the task gives them."""
    fingerprint: str | None = None
    generation: int | None = None
    records: int | None = None
    succeeded: int | None = None
    truncated: int | None = None
    skipped: int | None = None
    failed: int | None = None
    failures: dict[str, int] = field(factory=dict)
    """Failed records by error type."""
    repeated: int | None = None
    cached: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def job_lineage(
    request: Any, *, engine_args: Any = None, table: Any = None, manifest: Manifest | None = None
) -> OperatorLineage:
    """The lineage of a job.

    Args:
        request: The request as the task gives it, rendered. What is wrong in it is passed over: the task says so.
        engine_args: The task's argument.
        table: The task's argument.
        manifest: Of the job, if it has succeeded.
    """
    request = request if isinstance(request, Mapping) else {}
    model_config = _mapping(request.get("model_config"))
    return OperatorLineage(
        inputs=[InputDataset(*name) for name in _names(request.get("input_data_path"))],
        outputs=_outputs(request.get("output_data_path"), manifest),
        run_facets={FACET: _facet(model_config, _parameters(model_config, engine_args, table), manifest)},
    )


def _outputs(path: Any, manifest: Manifest | None) -> list[OutputDataset]:
    if manifest is None:
        return [OutputDataset(*name) for name in _names(path)]
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.records,
        size=manifest.output_bytes,
        fileCount=1 if manifest.files is None else len(manifest.files),
    )
    return [
        OutputDataset(*name, outputFacets={"outputStatistics": written}) for name in _names(manifest.output_data_path)
    ]


def _names(path: Any) -> list[tuple[str, str]]:
    name = dataset_name(path) if isinstance(path, str) else None
    return [] if name is None else [name]


def _parameters(model_config: Mapping[str, Any], engine_args: Any, table: Any) -> dict[str, Any]:
    parameters = dict(model_config)
    # What is refused here, the task is refused for.
    with contextlib.suppress(RequestRefusedError):
        rows = read_table(table)
        parameters |= {} if rows is None else rows.parameters
    with contextlib.suppress(RequestRefusedError):
        parameters |= read_engine_args(engine_args)
    for name in ("model", "chat_template"):
        parameters.pop(name, None)
    return parameters


def _facet(model_config: Mapping[str, Any], parameters: dict[str, Any], manifest: Manifest | None) -> LLMEngineRunFacet:
    if manifest is None:
        model = model_config.get("model")
        return LLMEngineRunFacet(model=model if isinstance(model, str) else None, parameters=parameters)
    return LLMEngineRunFacet(
        model=manifest.model,
        model_identity=manifest.model_identity,
        engine=manifest.engine,
        engine_version=manifest.engine_version,
        parameters=parameters,
        fingerprint=manifest.fingerprint,
        generation=manifest.generation,
        records=manifest.records,
        succeeded=manifest.succeeded,
        truncated=manifest.truncated,
        skipped=manifest.skipped,
        failed=manifest.failed,
        failures=dict(manifest.failures),
        repeated=manifest.repeated,
        cached=manifest.cached,
        prompt_tokens=manifest.prompt_tokens,
        completion_tokens=manifest.completion_tokens,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
