"""How an EKS cluster is reached: moto's EKS, a stub of the command that makes tokens, and an API server of a kind."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api

from airflow_llmengine.exceptions import ClusterUnavailableError, ConnectionUnusableError, LLMEngineError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.eks_access import RENEW_SECONDS, EksAccess, EksCluster, shared_access
from airflow_llmengine.triggers.eks import LLMEngineEksPodTrigger
from tests.airflow.eks_double import REGION, EksDouble
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

HOUR = 3600.0


class ApiServer(ThreadingHTTPServer):
    """Knows one pod, and only who brings a token that it takes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.takes = ""
        self.seen: list[tuple[str, str, str]] = []
        """Method, path and token of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.seen.append((self.command, self.path.partition("?")[0], token))
        taken = token == self.server.takes
        pod = {"kind": "Pod", "metadata": {"name": "worker", "namespace": "llm"}, "status": {"phase": "Running"}}
        body = json.dumps(pod if taken else {"kind": "Status", "code": 401}).encode()
        self.send_response(200 if taken else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture(scope="module")
def aws() -> Iterator[S3Server]:
    # Moto knows EKS, too.
    with S3Server.running() as server:
        yield server


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def eks(aws: S3Server, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EksDouble:
    """A cluster at AWS, which is ``api``. What this process leaves in the temporary folder is in ``tmp``."""
    double = EksDouble(aws, tmp_path / "eks", api.url)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name, value in double.environment.items():
        monkeypatch.setenv(name, value)
    return double


def cluster_of(eks: EksDouble, **changed: str) -> EksCluster:
    return EksCluster(**{**eks.arguments, **changed})


def a_trigger(eks: EksDouble) -> LLMEngineEksPodTrigger:
    return LLMEngineEksPodTrigger(
        pod_name="worker",
        pod_namespace="llm",
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        eks_cluster_name=eks.name,
        aws_conn_id="aws_eks",
        region=REGION,
    )


def test_a_token_is_made_once_and_anew_before_it_expires(eks: EksDouble) -> None:
    access = EksAccess(cluster_of(eks))
    eks.hand_out("first", HOUR)
    kubeconfig = access.kubeconfig()
    assert kubeconfig["users"][0]["user"] == {"token": "first"}
    assert access.kubeconfig() is kubeconfig
    assert [f"--cluster-name {eks.name}" in call and f"--region-name {REGION}" in call for call in eks.calls] == [True]
    access.forget(kubeconfig)
    # It holds for a moment, but not for long enough.
    eks.hand_out("second", RENEW_SECONDS - 1)
    assert access.kubeconfig()["users"][0]["user"] == {"token": "second"}
    eks.hand_out("third", HOUR)
    assert access.kubeconfig()["users"][0]["user"] == {"token": "third"}
    assert len(eks.calls) == 3


def test_no_kubeconfig_and_no_key_is_left_in_a_file(eks: EksDouble, tmp_path: Path) -> None:
    eks.hand_out("token", HOUR)
    EksAccess(cluster_of(eks)).kubeconfig()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_another_thread_has_renewed_already_is_not_forgotten(eks: EksDouble) -> None:
    access = EksAccess(cluster_of(eks))
    eks.hand_out("first", HOUR)
    refused = access.kubeconfig()
    access.forget(refused)
    kubeconfig = access.kubeconfig()
    access.forget(refused)
    assert access.kubeconfig() is kubeconfig


def test_a_client_that_is_kept_brings_a_new_token_when_the_old_one_has_expired(eks: EksDouble, api: ApiServer) -> None:
    from airflow_llmengine.hooks.cluster_client import cluster_client

    settings = ConnectionSettings.parse("c", {"launcher": "kubernetes", "eks": json.dumps(eks.arguments)})
    eks.hand_out(api.takes, 0)
    api.takes = "first"
    eks.hand_out("first", RENEW_SECONDS - 1)
    client, namespace = cluster_client(settings)
    assert namespace == "default"
    for token in ("first", "second"):
        api.takes = token
        eks.hand_out(token, RENEW_SECONDS - 1)
        assert CoreV1Api(client).read_namespaced_pod("worker", "llm").metadata.name == "worker"


def test_a_triggers_looks_share_a_token(eks: EksDouble, api: ApiServer) -> None:
    """The provider's own trigger has one made for each look: 64 replicas would keep a machine busy with that alone."""
    api.takes = "token"
    eks.hand_out("token", HOUR)

    async def look() -> None:
        for trigger in (a_trigger(eks), a_trigger(eks)):
            for _ in range(2):
                await trigger.hook.get_pod("worker", "llm")

    asyncio.run(look())
    assert len(api.seen) == 4
    assert len(eks.calls) == 1


def test_a_trigger_that_is_killed_brings_a_token_that_holds(eks: EksDouble, api: ApiServer) -> None:
    """Also where it never ran in this process: the one that was killed may have been that of another triggerer."""
    trigger = a_trigger(eks)
    api.takes = "new"
    eks.hand_out("new", HOUR)
    asyncio.run(trigger.on_kill())
    assert ("DELETE", "/api/v1/namespaces/llm/pods/worker", "new") in api.seen


def test_a_trigger_whose_token_expired_while_it_waited_is_killed_with_a_new_one(eks: EksDouble, api: ApiServer) -> None:
    trigger = a_trigger(eks)

    async def look_and_kill() -> None:
        api.takes = "first"
        eks.hand_out("first", RENEW_SECONDS - 1)
        await trigger.hook.get_pod("worker", "llm")
        api.takes = "second"
        eks.hand_out("second", HOUR)
        await trigger.on_kill()

    asyncio.run(look_and_kill())
    assert [(method, token) for method, _path, token in api.seen] == [("GET", "first"), ("DELETE", "second")]


def test_a_token_that_the_cluster_refuses_is_not_used_again(eks: EksDouble, api: ApiServer) -> None:
    from kubernetes_asyncio.client import ApiException

    trigger = a_trigger(eks)

    async def look_twice() -> None:
        eks.hand_out("refused", HOUR)
        api.takes = "new"
        with pytest.raises(ApiException):
            await trigger.hook.get_pod("worker", "llm")
        eks.hand_out("new", HOUR)
        await trigger.hook.get_pod("worker", "llm")

    asyncio.run(look_twice())


def test_what_a_trigger_keeps_in_the_database_has_no_secret_and_no_kubeconfig(eks: EksDouble, api: ApiServer) -> None:
    trigger = a_trigger(eks)
    api.takes = "token"
    eks.hand_out("token", HOUR)
    asyncio.run(trigger.on_kill())
    path, arguments = trigger.serialize()
    kept = json.dumps([path, arguments], default=str)
    for secret in ("token", ACCESS_KEY, SECRET_KEY, "kube", api.url):
        assert secret not in kept, secret
    assert LLMEngineEksPodTrigger(**arguments).serialize() == (path, arguments)


@pytest.mark.parametrize(
    ("changed", "answer", "error", "said"),
    [
        ({"cluster_name": "nowhere"}, None, ConnectionUnusableError, "DescribeCluster with ResourceNotFoundException"),
        ({}, "", ConnectionUnusableError, "Failed to extract token from eks_get_token output"),
        ({"aws_conn_id": "nobody", "region": "eu-west-1"}, None, ConnectionUnusableError, "no usable credentials"),
        ({"aws_conn_id": "aws_away"}, None, ClusterUnavailableError, "EndpointConnectionError"),
    ],
)
def test_what_goes_wrong_is_one_sentence_without_secrets(
    eks: EksDouble,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    answer: str | None,
    error: type[LLMEngineError],
    said: str,
) -> None:
    away = json.loads(eks.environment["AIRFLOW_CONN_AWS_EKS"])
    away["extra"] = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_AWAY", json.dumps(away))
    eks.hand_out("token", HOUR)
    if answer is not None:
        eks.answer(answer)
    with pytest.raises(error, match=said) as raised:
        EksAccess(cluster_of(eks, **changed)).kubeconfig()
    assert SECRET_KEY not in str(raised.value)
    assert raised.value.__context__ is None


def test_without_the_amazon_provider_the_connection_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.eks", None)
    with pytest.raises(ConnectionUnusableError, match="without the package apache-airflow-providers-amazon"):
        EksAccess(EksCluster(cluster_name="c")).kubeconfig()


def test_all_of_a_process_share_the_way_into_a_cluster() -> None:
    one = EksCluster(cluster_name="one")
    assert shared_access(one) is shared_access(EksCluster(cluster_name="one"))
    assert shared_access(one) is not shared_access(EksCluster(cluster_name="one", region="eu-west-1"))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"eks": '{"cluster_name": "c"}', "kubernetes_conn_id": "k"}, "leave one of the two out"),
        ({"eks": {"region": "eu-west-1"}}, "eks.cluster_name"),
        ({"eks": {"cluster_name": "c", "aws_connection": "a"}}, "eks.aws_connection"),
    ],
)
def test_a_connection_that_names_a_cluster_wrongly_is_refused(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ConnectionUnusableError, match=said):
        ConnectionSettings.parse("c", extra)
