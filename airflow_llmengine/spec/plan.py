"""What a job will ask for, before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request

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

    def lines(self) -> list[str]:
        """The plan for a person, one fact a line."""
        gpus = "not given" if self.gpus_per_node is None else f"{self.gpus_per_node} x {self.gpu_type or 'any type'}"
        if self.gpus_per_node is not None:
            total = self.replicas * self.nodes_per_replica * self.gpus_per_node
            gpus += f" on each of {self.replicas * self.nodes_per_replica} nodes, {total} in all"
        hours, rest = divmod(self.max_runtime_sec, 3600)
        return [
            f"model     {self.model} from {self.weights}",
            f"input     {self.input}",
            f"output    {self.output} ({self.output_format})",
            f"replicas  {self.replicas}",
            f"GPUs      {gpus}",
            (
                f"others    cpus {self.cpus or 'not given'}, memory {self.memory or 'not given'}, "
                f"storage {self.storage or 'not given'}"
            ),
            f"deadline  {self.max_runtime_sec} s ({hours} h {rest // 60} min) after the launch, retries included",
        ]


def plan(request: CreateBatchCompletionsV1Request) -> Plan:
    """Work out what a request asks for. Pure: nothing is read and nothing is written."""
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
        output_format="JSON lines" if request.output_data_path.endswith(".jsonl") else "one JSON array",
        replicas=request.data_parallelism or 1,
        nodes_per_replica=request.nodes_per_worker or 1,
        gpus_per_node=request.gpus,
        gpu_type=None if request.gpu_type is None else str(request.gpu_type),
        cpus=_quantity(request.cpus),
        memory=_quantity(request.memory),
        storage=_quantity(request.storage),
        max_runtime_sec=max_runtime_sec(request),
    )


def max_runtime_sec(request: CreateBatchCompletionsV1Request) -> int:
    """The job's budget in seconds."""
    return DEFAULT_MAX_RUNTIME_SEC if request.max_runtime_sec is None else request.max_runtime_sec


def _quantity(value: str | float | None) -> str | None:
    return None if value is None else str(value)
