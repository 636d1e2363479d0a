# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.config.importing import import_document
from agent.config.strict_yaml import UnreadableYaml


def test_a_kubelet_configuration_is_taken_over_as_far_as_it_means_the_same() -> None:
    text = (
        b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxParallelImagePulls: 5\n"
        b"staticPodPath: /etc/kubernetes/manifests\nserializeImagePulls: false\n"
        b"authentication: {anonymous: {enabled: true}}\n"
    )
    document, left_out = import_document(text, "k")

    assert document["images"] == {"maxParallelPulls": 5}
    assert document["manifests"] == {"directory": "/etc/kubernetes/manifests"}
    assert [finding.path for finding in left_out] == ["authentication.anonymous.enabled"]


def test_what_a_kubelet_gives_its_pods_is_taken_over() -> None:
    text = (
        b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfileCheckFrequency: 5s\n"
        b"podPidsLimit: 1024\nmemorySwap: {swapBehavior: LimitedSwap}\nsingleProcessOOMKill: true\n"
        b"seccompDefault: true\ncrashLoopBackOff: {maxContainerRestartPeriod: 60s}\nmaxPods: 50\n"
    )
    document, left_out = import_document(text, "k")
    unlimited, _ = import_document(text.replace(b"1024", b"-1").replace(b"true", b"false"), "k")

    assert document["pods"] == {
        "podPidsLimit": 1024, "swap": "LimitedSwap", "singleProcessOOMKill": True, "defaultSeccomp": "RuntimeDefault",
        "maxRestartPeriod": "60s", "maxPods": 50,
    }  # fmt: skip
    assert (document["manifests"], left_out) == ({"rescan": "5s"}, [])
    assert unlimited["pods"] == {
        "swap": "LimitedSwap", "singleProcessOOMKill": False, "maxRestartPeriod": "60s", "maxPods": 50,
    }  # fmt: skip


def test_a_kube_proxy_configuration_too() -> None:
    text = (
        b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n"
        b"clusterCIDR: 10.0.0.0/8,fd00::/8\nconntrack: {maxPerCore: 1000, min: null}\n"
    )
    document, _ = import_document(text, "p")

    assert document["services"] == {
        "backend": "iptables",
        "detectLocal": {"clusterCIDRs": ["10.0.0.0/8", "fd00::/8"]},
        "conntrack": {"maxPerCore": 1000},
    }


@pytest.mark.parametrize("text", [b"", b"a: b", b"apiVersion: v1\nkind: Pod\n", b"[]"])
def test_other_documents_are_refused(text: bytes) -> None:
    with pytest.raises(UnreadableYaml):
        import_document(text, "x")
