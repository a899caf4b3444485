"""A job of the stand-in engine whose data is on S3, and the credentials by which each side reaches it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.manifest import Manifest
from tests.kubernetes.cluster import Cluster
from tests.storage.s3_server import ACCESS_KEY, POD_ACCESS_KEY, SECRET_KEY, S3Server

OWN_SECRET = "pods-own-credentials"


class JobOnS3:
    """One job in a bucket of its own.

    Args:
        s3: A store that pods reach.
        prompts: The input; written as V2 records, one a line.
        generated: A file, which pods can write, in which the engine notes down what it generates.
    """

    def __init__(self, s3: S3Server, prompts: Iterable[str], generated: Path) -> None:
        self.s3 = s3
        self.bucket = s3.new_bucket()
        self.generated = generated
        lines = (json.dumps({"prompt": prompt, "max_tokens": 4}) for prompt in prompts)
        s3.client.put_object(Bucket=self.bucket, Key="input.jsonl", Body="\n".join(lines).encode())

    @property
    def request(self) -> dict[str, Any]:
        return {
            "input_data_path": f"s3://{self.bucket}/input.jsonl",
            "output_data_path": f"s3://{self.bucket}/output.json",
            "model_config": {"model": "stand-in"},
        }

    def generations(self) -> Counter[int]:
        """How often each record was generated, over all attempts."""
        lines = self.generated.read_text().splitlines() if self.generated.exists() else []
        return Counter(int(line.split()[0]) for line in lines)

    def read(self, name: str) -> bytes | None:
        """A file of the bucket; None if there is none."""
        try:
            body: bytes = self.s3.client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        except self.s3.client.exceptions.NoSuchKey:
            return None
        return body

    def output(self) -> bytes | None:
        return self.read("output.json")

    def manifest(self) -> Manifest:
        found = self.read("output.json.manifest.json")
        assert found is not None
        manifest = Manifest.model_validate_json(found)
        return manifest.model_copy(update={"output_data_path": self.request["output_data_path"]})


def aws_connection(s3: S3Server) -> str:
    """Airflow's own credentials, with the store's address."""
    extra = {"endpoint_url": s3.endpoint, "region_name": "us-east-1"}
    return json.dumps({"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY, "extra": extra})


def own_credentials(cluster: Cluster, namespace: str) -> Mapping[str, Any]:
    """Make a Secret with other credentials for the pods; gives the settings of a connection whose pods use them."""
    keys = {"AWS_ACCESS_KEY_ID": POD_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    cluster.core.create_namespaced_secret(namespace, {"metadata": {"name": OWN_SECRET}, "stringData": keys})
    return {"pod_credentials": "pod", "cluster": {"accelerator": "none", "credentials_secret": OWN_SECRET}}
