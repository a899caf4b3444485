"""What stands for Amazon EKS: moto's API, which leads to any cluster, and a command that hands out tokens."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

REGION = "us-east-1"

_COMMAND = """#!/bin/sh
# Found in front of the interpreter by which the amazon provider has a token made.
case "$*" in
*eks_get_token*) ;;
*) exec {python} "$@" ;;
esac
[ "$AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY" = "{access_key} {secret_key}" ] || {{ echo "who are you" >&2; exit 1; }}
echo "$*" >> {folder}/calls
# It may be replaced in this moment.
cat {folder}/answer || exit 1
"""


class EksDouble:
    """One cluster at AWS, and who makes tokens for it.

    Args:
        aws: Moto's server.
        folder: A folder of its own; its ``bin`` must be in front in ``PATH``.
        server: The cluster's address.
        authority: Its certificate authority, in PEM; nothing for plain HTTP.
    """

    def __init__(self, aws: S3Server, folder: Path, server: str, authority: bytes = b"") -> None:
        import boto3
        from moto.eks.models import eks_backends

        self.name = f"cluster-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self._aws = aws
        client = boto3.client(
            "eks",
            endpoint_url=aws.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        client.create_cluster(name=self.name, roleArn="arn:aws:iam::123456789012:role/eks", resourcesVpcConfig={})
        made = eks_backends["123456789012"][REGION].clusters[self.name]
        made.endpoint, made.certificate_authority = server, {"data": base64.b64encode(authority).decode()}
        (folder / "bin").mkdir(parents=True)
        command = folder / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        command.write_text(
            _COMMAND.format(python=sys.executable, folder=folder, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
        )
        command.chmod(command.stat().st_mode | stat.S_IXUSR)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is to reach the cluster; its Airflow connection is ``aws_eks``."""
        connection = {
            "conn_type": "aws",
            "login": ACCESS_KEY,
            "password": SECRET_KEY,
            "extra": {"endpoint_url": self._aws.endpoint},
        }
        return {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_CONN_AWS_EKS": json.dumps(connection),
        }

    @property
    def arguments(self) -> dict[str, Any]:
        """What leads to it: as the connection's field ``eks``, or an operator's arguments."""
        return {"cluster_name": self.name, "region": REGION, "aws_conn_id": "aws_eks"}

    def hand_out(self, token: str, seconds: float) -> None:
        """Give out this token from now on, which says that it holds for so long."""
        expires = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        new = self.folder / "new"
        new.write_text(f"expirationTimestamp: {expires}, token: {token}\n")
        new.replace(self.folder / "answer")

    def answer(self, text: str) -> None:
        """Have the command say this instead."""
        (self.folder / "answer").write_text(text)

    @property
    def calls(self) -> list[str]:
        """The arguments with which the command was run."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []
