# SPDX-License-Identifier: Apache-2.0
"""The configuration of the kubelet on this node: its files, drop-ins and flags, or what it answers under /configz."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.error import URLError

import yaml

from agent.drivers.kubelet.places import KubeletPlace, find_kubelet

DEFAULT_PLACE = "/var/lib/kubelet/config.yaml"
LIMIT_S = 3.0
MOST_BYTES = 1 << 20
DROP_IN = "*.conf"
# Flags that win over files, as the keys they stand for.
FLAGS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "container-runtime-endpoint": ("containerRuntimeEndpoint", str),
    "image-service-endpoint": ("imageServiceEndpoint", str),
    "serialize-image-pulls": ("serializeImagePulls", lambda text: text.lower() in ("", "true", "t", "1")),
    "max-parallel-image-pulls": ("maxParallelImagePulls", int),
    "registry-qps": ("registryPullQPS", int),
    "runtime-request-timeout": ("runtimeRequestTimeout", str),
    "image-gc-high-threshold": ("imageGCHighThresholdPercent", int),
    "image-gc-low-threshold": ("imageGCLowThresholdPercent", int),
}


class KubeletConfiguration:
    """`place` is a path, or a URL of http or https. The default path means: where this node's kubelet has it."""

    def __init__(self, place: str, root: Path = Path("/")) -> None:
        self.place = place
        self._root = root

    async def read(self) -> tuple[bytes, bytes]:
        """The configuration and what is laid over it. Raises OSError and ValueError."""
        return await asyncio.to_thread(self.read_now)

    def read_now(self) -> tuple[bytes, bytes]:
        """The same from a thread. `place` names the file afterwards, or says where flags came from."""
        if self.place.startswith(("http://", "https://")):
            return self._ask(), b""
        found = find_kubelet(self._root) if self.place == DEFAULT_PLACE else KubeletPlace(path=self.place)
        path = self._root / found.path.lstrip("/") if found.path and self.place == DEFAULT_PLACE else Path(found.path)
        self.place = found.path or found.source
        content = path.read_bytes() if found.path else b"{}"
        return content, _overlay(self._root, found)

    def _ask(self) -> bytes:
        try:
            with urllib.request.urlopen(self.place, timeout=LIMIT_S) as answer:  # noqa: S310  # checked by read_now
                content: bytes = answer.read(MOST_BYTES)
        except URLError as error:
            if self.place.startswith("https://"):
                text = "kepd has neither the CA nor a token for it; name the kubelet's file instead"
                raise OSError(f"{self.place}: {error.reason}; {text}") from None
            raise
        return content


def _overlay(root: Path, found: KubeletPlace) -> bytes:
    """Drop-ins in the order of their names, then flags: the later wins. kubeadm's instance-config.yaml is none: it is
    what kubeadm makes the file of, and no kubelet reads it."""
    layers = sorted((root / found.drop_ins.lstrip("/")).glob(DROP_IN)) if found.drop_ins else []
    merged: dict[str, object] = {}
    for layer in layers:
        try:
            document = yaml.safe_load(layer.read_bytes())
        except yaml.YAMLError as error:
            raise ValueError(f"{layer} is neither YAML nor JSON: {str(error).splitlines()[0]}") from error
        merged.update(document if isinstance(document, dict) else {})
    for flag, text in found.flags.items():
        if flag in FLAGS:
            key, read = FLAGS[flag]
            try:
                merged[key] = read(text)
            except ValueError:
                raise ValueError(f"{found.source}: --{flag}={text} is not a whole number") from None
    return json.dumps(merged).encode() if merged else b""
