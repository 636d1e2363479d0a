# SPDX-License-Identifier: Apache-2.0
"""Configuration files of a kubelet or a kube-proxy into ours. A key without a counterpart is named, never guessed."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from agent.config.document import API_VERSION, KIND
from agent.config.reference import put_at
from agent.config.strict_yaml import Scalar, Tree, UnreadableYaml, parse_documents, plain
from agent.model.finding import Finding, shown

KUBELET = "kubelet.config.k8s.io/v1beta1"
KUBE_PROXY = "kubeproxy.config.k8s.io/v1alpha1"

Rename = tuple[str, Callable[[Scalar], object]]


def _same(value: Scalar) -> object:
    return value


KUBELET_KEYS: Mapping[str, Rename] = MappingProxyType({
    "maxParallelImagePulls": ("images.maxParallelPulls", _same),
    "serializeImagePulls": ("images.maxParallelPulls", lambda value: 1 if value else None),
    "staticPodPath": ("manifests.directory", _same),
    "containerRuntimeEndpoint": ("runtime.endpoint", _same),
    "imageServiceEndpoint": ("runtime.imageEndpoint", _same),
    "clusterDomain": ("pods.clusterDomain", _same),
    "resolvConf": ("pods.resolvConf", _same),
    "containerLogMaxFiles": ("pods.logs.maxFiles", _same),
    "containerLogMaxSize": ("pods.logs.maxSize", _same),
    "runtimeRequestTimeout": ("runtime.requestTimeout", _same),
    "fileCheckFrequency": ("manifests.rescan", _same),
    "maxPods": ("pods.maxPods", _same),
    "podPidsLimit": ("pods.podPidsLimit", lambda value: value if isinstance(value, int) and value > 0 else None),
    "memorySwap.swapBehavior": ("pods.swap", lambda value: value or None),
    "singleProcessOOMKill": ("pods.singleProcessOOMKill", _same),
    "seccompDefault": ("pods.defaultSeccomp", lambda value: "RuntimeDefault" if value is True else None),
    "crashLoopBackOff.maxContainerRestartPeriod": ("pods.maxRestartPeriod", _same),
})  # fmt: skip

KUBE_PROXY_KEYS: Mapping[str, Rename] = MappingProxyType({
    "mode": ("services.backend", lambda value: "iptables" if value == "iptables" else "nftables"),
    "clusterCIDR": ("services.detectLocal.clusterCIDRs", lambda value: str(value).replace(",", " ").split()),
    "hostnameOverride": ("node.name", _same),
    "healthzBindAddress": ("services.healthzAddress", _same),
    "metricsBindAddress": ("services.metricsAddress", _same),
    "clientConnection.kubeconfig": ("kubernetes.kubeconfig", _same),
    "detectLocalMode": ("services.detectLocal.mode", _same),
    "detectLocal.bridgeInterface": ("services.detectLocal.interface", _same),
    "detectLocal.interfaceNamePrefix": ("services.detectLocal.interfacePrefix", _same),
    "conntrack.maxPerCore": ("services.conntrack.maxPerCore", _same),
    "conntrack.min": ("services.conntrack.min", _same),
    "conntrack.tcpBeLiberal": ("services.conntrack.tcpBeLiberal", _same),
    "iptables.masqueradeAll": ("services.masqueradeAll", _same),
    "iptables.masqueradeBit": ("services.masqueradeBit", _same),
    "iptables.minSyncPeriod": ("services.minSyncPeriod", _same),
    "iptables.syncPeriod": ("services.syncPeriod", _same),
    "nftables.masqueradeAll": ("services.masqueradeAll", _same),
    "nftables.masqueradeBit": ("services.masqueradeBit", _same),
    "nftables.minSyncPeriod": ("services.minSyncPeriod", _same),
    "nftables.syncPeriod": ("services.syncPeriod", _same),
})  # fmt: skip

TABLES = MappingProxyType({KUBELET: KUBELET_KEYS, KUBE_PROXY: KUBE_PROXY_KEYS})


def import_document(text: bytes, source: str) -> tuple[dict[str, object], list[Finding]]:
    documents, duplicates = parse_documents(text, source)
    if not documents or documents[0].kind != "map":
        raise UnreadableYaml(Finding(source, "", f"is not a document of {KUBELET} or {KUBE_PROXY}"))
    entries = dict(documents[0].entries)
    version = entries.pop("apiVersion", Tree("scalar", source)).scalar
    entries.pop("kind", None)
    table = TABLES.get(str(version))
    if table is None:
        raise UnreadableYaml(Finding(source, "apiVersion", f"{shown(version)} is not {KUBELET} or {KUBE_PROXY}"))
    document: dict[str, object] = {"apiVersion": API_VERSION, "kind": KIND}
    left_out = list(duplicates)
    for path, tree in _leaves(entries, ""):
        rename = table.get(path)
        if rename is None:
            left_out.append(Finding(tree.where, path, "has no counterpart in kepd; left out"))
        elif tree.scalar not in (None, "") and (value := rename[1](tree.scalar)) is not None:
            put_at(document, rename[0], value)
    return document, left_out


def _leaves(entries: Mapping[str, Tree], path: str) -> list[tuple[str, Tree]]:
    found: list[tuple[str, Tree]] = []
    for name, tree in entries.items():
        below = f"{path}.{name}" if path else name
        if tree.kind == "map" and tree.entries:
            found += _leaves(tree.entries, below)
        elif plain(tree) not in (None, {}, []):
            found.append((below, tree))
    return found
