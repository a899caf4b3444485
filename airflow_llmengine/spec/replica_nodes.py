"""A replica that spans several nodes: what the launcher, its leader and its followers agree on.

Node 0 is the leader, a worker like any other. The others, its followers, compute for its engine and do nothing by
themselves. Each holds a connection to the leader, the lifeline: its end is the end of the replica.
"""

from __future__ import annotations

from airflow_llmengine.spec.hardware.inference import parallelism_of
from airflow_llmengine.spec.hardware.layout import Layout, LayoutError, gpu_counts, layout_of
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import shown_number

LIFELINE_PORT = 29490
"""TCP port of the leader to which followers connect. The engine's own first port is the next one that is free; beyond
that engines use ports that the system gives them, so nodes of one replica must reach one another on all ports."""

NODE_TOKEN_VARIABLE = "LLMENGINE_NODE_TOKEN"  # noqa: S105
"""Environment variable with what all nodes of one attempt of a replica share, and nobody else has."""

MOST_NODES = 64
"""Nodes that one replica may span: more are a slip of the pen."""

_MOST_GPUS = 1024


def nodes_of(request: CreateBatchCompletionsV1Request) -> int:
    """Nodes that each replica spans."""
    return request.nodes_per_worker or 1


def node_layout(request: CreateBatchCompletionsV1Request) -> Layout:
    """How the engine's ranks are laid out on the nodes.

    What the request leaves open: as many ranks share each layer (tensor parallel) as a node has ``gpus``, and a
    pipeline stage for each node.

    Raises:
        LayoutError: The numbers that were given don't go together.
    """
    asked = parallelism_of(request)
    return layout_of(asked, next(iter(gpu_counts(asked, _MOST_GPUS)), 1), None)


def nodes_refusal(request: CreateBatchCompletionsV1Request) -> Refusal | None:
    """Refuse numbers of ranks that several nodes can't share evenly."""
    model = request.model_cfg
    if nodes_of(request) > MOST_NODES:
        return Refusal("nodes_per_worker", f"must be at most {MOST_NODES}, not {shown_number(nodes_of(request))}")
    sizes = (request.gpus, model.tensor_parallel_size, model.num_shards, model.pipeline_parallel_size)
    if nodes_of(request) <= 1 or any(size is not None and size < 1 for size in sizes):
        return None
    try:
        node_layout(request)
    except LayoutError as error:
        return Refusal(
            "nodes_per_worker",
            str(error),
            "let tensor_parallel_size times pipeline_parallel_size be gpus times nodes_per_worker, or leave both out",
        )
    return None
