"""What a job will ask for, before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_llmengine.spec.hardware.gpus import GIB
from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table

DEFAULT_MAX_RUNTIME_SEC = 86400
"""The contract's default, also where ``max_runtime_sec`` is given as null."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers, hardware and deadline of one job."""

    model: str
    weights: str
    """Where the weights come from."""
    input: str
    output: str
    output_format: str
    replicas: int
    nodes_per_replica: int
    gpus_per_node: int | None
    """None: not given."""
    gpu_type: str | None
    cpus: str | None
    memory: str | None
    storage: str | None
    max_runtime_sec: int
    hardware: Hardware | None
    """What was worked out for the model beside what is given; None: nothing was."""

    def lines(self) -> list[str]:
        """The plan for a person, one fact a line."""
        gpus, host = "not given", self.hardware and self.hardware.host
        if self.gpus_per_node is not None:
            pods = self.replicas * self.nodes_per_replica
            gpus = f"{self.gpus_per_node} x {self.gpu_type or 'any type'}"
            gpus += f" for each of {pods} pods, {pods * self.gpus_per_node} in all" if pods > 1 else " for one pod"
        elif self.hardware is not None:
            gpus = "none"
        cpus = self.cpus or (f"{host.cores} (worked out)" if host else "not given")
        memory = self.memory or (f"{host.memory // GIB}Gi and shared memory (worked out)" if host else "not given")
        disk = f"{host.storage // GIB}Gi (worked out)" if host and host.storage else "not given"
        hours, rest = divmod(self.max_runtime_sec, 3600)
        return [
            f"model     {self.model} from {self.weights}",
            f"input     {self.input}",
            f"output    {self.output} ({self.output_format})",
            f"replicas  {self.replicas}",
            f"GPUs      {gpus}",
            *(f"          {line}" for line in (self.hardware.explanation if self.hardware else ())),
            f"others    cpus {cpus}, memory {memory}, storage {self.storage or disk}",
            f"deadline  {self.max_runtime_sec} s ({hours} h {rest // 60} min) after the launch, retries included",
        ]


_FORMATS: Mapping[str | None, str] = {
    "parquet": "Parquet",
    "csv": "CSV",
    "tsv": "TSV",
    "arrow": "Arrow",
    "jsonl": "JSON lines",
}


def plan(
    request: CreateBatchCompletionsV1Request, hardware: Hardware | None = None, table: Table | None = None
) -> Plan:
    """Say what a job asks for. Pure: nothing is read and nothing is written.

    Args:
        request: A checked request.
        hardware: What was worked out for its model; None: nothing was.
        table: How rows become records, and results columns, if it has a table.
    """
    model = request.model_cfg
    return Plan(
        model=model.served_model_name or model.model,
        weights=model.checkpoint_path or f"the model hub or its cache ({model.model})",
        input=(
            request.input_data_path or "nothing"
            if request.content is None
            else f"{len(request.content.prompts)} prompts in the request"
        ),
        output=request.output_data_path,
        output_format=_output_format(request.output_data_path, table),
        replicas=request.data_parallelism or 1,
        nodes_per_replica=request.nodes_per_worker or 1,
        gpus_per_node=_gpus_per_node(request, hardware),
        gpu_type=hardware.gpu.name if hardware and hardware.gpu else request.gpu_type and str(request.gpu_type),
        cpus=_quantity(request.cpus),
        memory=_quantity(request.memory),
        storage=_quantity(request.storage),
        max_runtime_sec=max_runtime_sec(request),
        hardware=hardware,
    )


def max_runtime_sec(request: CreateBatchCompletionsV1Request) -> int:
    """The job's budget in seconds."""
    return DEFAULT_MAX_RUNTIME_SEC if request.max_runtime_sec is None else request.max_runtime_sec


def _output_format(output: str, table: Table | None) -> str:
    if table is None:
        return "JSON lines" if output.endswith(".jsonl") else "one JSON array"
    rows = f"a table as {_FORMATS.get(table.format_of_output(output), 'a file')}"
    return f"{rows}, a file for each of the input's" if output.endswith("/") else rows


def _gpus_per_node(request: CreateBatchCompletionsV1Request, hardware: Hardware | None) -> int | None:
    if hardware is None:
        return request.gpus
    # Where there are none, none is asked for, whatever the request says.
    return None if hardware.layout is None else hardware.layout.gpus


def _quantity(value: str | float | None) -> str | None:
    return None if value is None else str(value)
