# SPDX-License-Identifier: Apache-2.0
"""What a kubelet is told to change."""

import json

import pytest

from agent.proxy.gates.kubelet_advice import advise, read_kubelet_settings

OURS = ("/run/kepd-cri/cri/kubelet.sock", "/run/kepd-cri/cri/cri.sock")
GOOD = """
containerRuntimeEndpoint: unix:///run/kepd-cri/cri/kubelet.sock
serializeImagePulls: false
registryPullQPS: 0
"""


def subjects(text: str, overlay: bytes = b"") -> list[str]:
    settings = read_kubelet_settings(text.encode(), "config.yaml", overlay)
    return [one.subject.removeprefix("kubelet ") for one in advise(settings, OURS)]


def test_a_kubelet_that_is_set_up_has_nothing_to_change() -> None:
    """IMG-X09."""
    assert subjects(GOOD) == []


def test_defaults_need_three_changes() -> None:
    """IMG-X09, NOH-7: an empty file is the kubelet's defaults."""
    assert subjects("kind: KubeletConfiguration") == [
        "containerRuntimeEndpoint",
        "serializeImagePulls",
        "registryPullQPS",
    ]


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("maxParallelImagePulls: 5", "maxParallelImagePulls"),
        ("imageServiceEndpoint: unix:///run/containerd/containerd.sock", "imageServiceEndpoint"),
    ],
)
def test_each_setting_that_hides_pulls_is_named(line: str, subject: str) -> None:
    assert subjects(GOOD + line) == [subject]


def test_the_bare_path_and_the_socket_itself_are_right_too() -> None:
    """PRX table 1: a bare path is deprecated and works."""
    assert subjects(GOOD.replace("unix://", "")) == []
    assert subjects(GOOD.replace("kubelet.sock", "cri.sock")) == []


def test_what_a_drop_in_lays_over_it_wins() -> None:
    """PRX table 1."""
    overlay = b"containerRuntimeEndpoint: unix:///run/containerd/containerd.sock"

    assert subjects(GOOD, overlay) == ["containerRuntimeEndpoint"]


def test_configz_is_read_as_well() -> None:
    configz = json.dumps({"kubeletconfig": {"serializeImagePulls": False, "maxParallelImagePulls": None}})
    settings = read_kubelet_settings(configz.encode(), "http://x/configz")

    assert settings.may_hold_pulls
    assert settings.most_parallel is None


@pytest.mark.parametrize("content", ["[1, 2]", "", "a: [", "just text"])
def test_what_is_no_configuration_is_told_with_its_place(content: str) -> None:
    with pytest.raises(ValueError, match=r"config\.yaml"):
        read_kubelet_settings(content.encode(), "config.yaml")
