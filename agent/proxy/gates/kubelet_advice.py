# SPDX-License-Identifier: Apache-2.0
"""What a kubelet's own configuration means for the proxy, and what to change in it.

Source: the defaults are those of KubeletConfiguration v1beta1.
"""

from collections.abc import Mapping

import msgspec
import yaml

from agent.model.finding import Advice

CONTAINERD = "unix:///run/containerd/containerd.sock"
DEFAULT_QPS = 5
DEFAULT_TIMEOUT = "2m0s"
SUBJECT = "kubelet"


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    endpoint: str = CONTAINERD
    image_endpoint: str = ""
    is_serial: bool = True
    most_parallel: int | None = None
    qps: float = DEFAULT_QPS
    request_timeout: str = DEFAULT_TIMEOUT

    @property
    def may_hold_pulls(self) -> bool:
        """Whether one pull that waits leaves the others alone."""
        return not self.is_serial


def read_kubelet_settings(content: bytes, source: str, overlay: bytes = b"") -> KubeletSettings:
    """From YAML or JSON, a file or configz; `overlay` is the file that kubeadm lays over it. Raises ValueError."""
    values = {**_document(content, source), **(_document(overlay, source) if overlay else {})}
    serial, parallel, qps = (
        values.get(key) for key in ("serializeImagePulls", "maxParallelImagePulls", "registryPullQPS")
    )
    return KubeletSettings(
        source=source,
        endpoint=_endpoint(values.get("containerRuntimeEndpoint")) or CONTAINERD,
        image_endpoint=_endpoint(values.get("imageServiceEndpoint")),
        is_serial=serial if isinstance(serial, bool) else True,
        most_parallel=parallel if isinstance(parallel, int) else None,
        qps=float(qps) if isinstance(qps, int | float) else DEFAULT_QPS,
        request_timeout=str(values.get("runtimeRequestTimeout") or DEFAULT_TIMEOUT),
    )


def advise(settings: KubeletSettings, endpoints: tuple[str, ...]) -> list[Advice]:
    """What to change. `endpoints` are ours, the one to use first."""
    found = []
    ours = tuple(f"unix://{path}" for path in endpoints)
    if settings.endpoint not in ours:
        found.append(_change("containerRuntimeEndpoint", settings.endpoint, ours[0], "the kubelet bypasses kepd"))
    if settings.image_endpoint and settings.image_endpoint not in ours:
        why = "pulls bypass kepd and every limit"
        found.append(_change("imageServiceEndpoint", settings.image_endpoint, "unset", why))
    if settings.is_serial:
        why = "the kubelet pulls one image at a time, so kepd lets its pulls pass without queueing them"
        found.append(_change("serializeImagePulls", "true", "false", why))
    if settings.most_parallel is not None:
        why = "the kubelet holds back pulls that kepd could have ordered"
        found.append(_change("maxParallelImagePulls", str(settings.most_parallel), "unset", why))
    if settings.qps:
        why = "the kubelet fails pulls above its rate limit; kepd makes them wait instead"
        found.append(_change("registryPullQPS", f"{settings.qps:g}", "0", why))
    return found


def _change(key: str, found: str, wanted: str, why: str) -> Advice:
    return Advice(subject=f"{SUBJECT} {key}", found=found, wanted=wanted, text=why)


def _document(content: bytes, source: str) -> Mapping[str, object]:
    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{source} is not a kubelet's configuration: it has no keys")
    inner = document.get("kubeletconfig", document)
    return inner if isinstance(inner, dict) else {}


def _endpoint(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return f"unix://{text}" if text.startswith("/") else text
