"""Whether an image that can't be pulled may come yet.

Registries, runtimes and the kubelet each have words of their own, and no code says it; these are containerd's,
CRI-O's and Docker's, and those of the registries behind them.
"""

from __future__ import annotations

import re

PULL_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""With these a container waits for its image."""

_HOPELESS_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})

_PASSING = (
    "toomanyrequests",
    "too many requests",
    "rate limit",
    "qps exceeded",
    "timeout",
    "timed out",
    "deadline exceeded",
    "connection refused",
    "connection reset",
    "network is unreachable",
    "no route to host",
    "temporary failure",
    "temporarily unavailable",
    "try again",
    "bad gateway",
    "service unavailable",
    "internal server error",
    "unexpected eof",
    "no space left",
    "token has expired",
)

_HOPELESS = (
    "not found",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "no match for platform",
    "no matching manifest",
    "invalid reference format",
    "unauthorized",
    "forbidden",
    "access denied",
    "permission denied",
    "denied:",
    "authorization failed",
    "no basic auth credentials",
    "authentication required",
    "insufficient_scope",
)


def is_hopeless(reason: str, message: str) -> bool:
    """Whether to wait or to try again is of no use: no such image, no permission, or no name of an image.

    In doubt there is hope: who waits in vain loses minutes, who gives up in vain the night.

    Args:
        reason: Why the container waits, one of ``PULL_REASONS``.
        message: What the kubelet, the runtime or the registry says, without the image's name.
    """
    if reason in _HOPELESS_REASONS:
        return True
    # Names and addresses may be of any words.
    said = re.sub(r'"[^"]*"|\S+://\S+', " ", message).lower()
    # Docker Hub's rate limit also says "denied", and names of hosts are "not found" while a network is down.
    if any(words in said for words in _PASSING) or "no such host" in said:
        return False
    return any(words in said for words in _HOPELESS)
