# SPDX-License-Identifier: Apache-2.0
"""Configurations in which a proxy cannot work."""

import pytest

from agent.config.document import Configuration, Proxy, RuntimeSection
from agent.proxy.settings_check import proxy_faults

RUNTIME = "unix:///run/containerd/containerd.sock"


@pytest.mark.parametrize(
    ("proxy", "runtime", "path"),
    [
        ({}, {"image_endpoint": "unix:///run/other.sock"}, "runtime.imageEndpoint"),
        ({"socket": "/run/containerd/containerd.sock"}, {}, "proxy.socket"),
        ({"socket": "/run/a.sock", "link": "/run/a.sock"}, {}, "proxy.link"),
    ],
)
def test_a_contradiction_is_named_while_the_plane_is_on(proxy, runtime, path) -> None:
    for is_enabled, expected in ((True, [path]), (False, [])):
        configuration = Configuration(
            proxy=Proxy(enabled=is_enabled, **proxy), runtime=RuntimeSection(**{"endpoint": RUNTIME, **runtime})
        )

        assert [one.path for one in proxy_faults(configuration)] == expected
