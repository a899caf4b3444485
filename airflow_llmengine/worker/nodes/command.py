"""Commands of the nodes of a replica that spans several: ``run`` on the first, ``follow`` on the others."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.replica_nodes import NODE_TOKEN_VARIABLE, nodes_of
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt, storage_exit_code
from airflow_llmengine.worker.early_signals import signal_pipe
from airflow_llmengine.worker.engines.base import EngineDiedError
from airflow_llmengine.worker.engines.load import load_engine, with_engine_args
from airflow_llmengine.worker.environment import EnvironmentInvalidError
from airflow_llmengine.worker.logs import log_end
from airflow_llmengine.worker.nodes.follower import FAILURES, Follower, FollowerOptions, ToldToEndError
from airflow_llmengine.worker.nodes.followers import Followers
from airflow_llmengine.worker.nodes.leading import StopWithNodes, leading
from airflow_llmengine.worker.stopping import Stop, end_process

logger = logging.getLogger(__name__)


def take_node_token() -> str:
    """Give what the nodes of this attempt share, and remove it from the environment.

    Raises:
        EnvironmentInvalidError: It is not set.
    """
    token = os.environ.pop(NODE_TOKEN_VARIABLE, "")
    if not token:
        raise EnvironmentInvalidError(
            f"nodes_per_worker is more than 1, and the environment variable {NODE_TOKEN_VARIABLE} is not set: give "
            "all nodes of the replica the same text there, which nobody else knows"
        )
    return token


def lead(
    options: argparse.Namespace,
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    attempt: AttemptOptions,
    stop: Stop,
) -> AttemptOutcome:
    """Run a replica on this node and the followers that connect to it; see ``run_attempt``.

    Raises:
        EnvironmentInvalidError: There is no token.
    """
    token, news = take_node_token(), StopWithNodes(stop)
    try:
        followers = Followers(nodes_of(request), token, news, port=options.nodes_port)
    except OSError as error:
        return AttemptOutcome(
            ExitCode.ENGINE_DIED, f"port {options.nodes_port} can't be opened for the other nodes: {error.strerror}"
        )
    with followers:
        make_engine = leading(
            followers, with_engine_args(load_engine, attempt.engine_args), patience=options.nodes_within
        )
        return run_attempt(storage, request, attempt, stop, make_engine=make_engine)


def follow(options: argparse.Namespace, storage: Storage, request: CreateBatchCompletionsV1Request) -> None:
    """Follow the leader to its end, and end this process.

    Raises:
        EnvironmentInvalidError: There is no token.
    """
    told = FollowerOptions(
        node=options.node,
        leader=options.leader,
        port=options.nodes_port,
        token=take_node_token(),
        patience=options.nodes_within,
        grace_seconds=options.grace_seconds,
    )
    make_engine = with_engine_args(load_engine, options.engine_args)
    asyncio.run(_follow(Follower(told, storage, request, make_engine)))


async def _follow(follower: Follower) -> None:
    exit_code = ExitCode.DONE
    try:
        await follower.run(signal_pipe())
    except ToldToEndError as error:
        log_end(logger, str(error))
        exit_code = ExitCode.PARTIAL
    except FAILURES as error:
        log_end(logger, f"node {follower.node}: {error}")
        exit_code = _exit_code(error)
    # Here, and not when the loop is closed: that waits for threads, of which one may fetch weights for hours.
    end_process(exit_code)


def _exit_code(error: Exception) -> ExitCode:
    if isinstance(error, StorageError):
        return storage_exit_code(error)
    return ExitCode.ENGINE_DIED if isinstance(error, EngineDiedError) else ExitCode.BAD_REQUEST
