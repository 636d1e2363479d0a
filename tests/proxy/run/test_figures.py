# SPDX-License-Identifier: Apache-2.0
"""Labels of the proxy's metrics."""

import pytest

from agent.proxy.run.figures import Figures


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/runtime.v1.RuntimeService/StopContainer", "StopContainer"),
        ("/runtime.v1.ImageService/ImageFsInfo", "ImageFsInfo"),
        ("/runtime.v1alpha2.RuntimeService/Version", "Version"),
        ("/runtime.v1.RuntimeService/Bogus", "other"),
        ("/foreign.Service/Version", "other"),
        ("", "other"),
    ],
)
def test_only_methods_of_cri_have_labels_of_their_own(path: str, method: str) -> None:
    """PRX-55: a client cannot make up labels."""
    figures = Figures()
    figures.called(path, 0, 0.001)
    figures.held(path, "order", 1.0)

    assert list(figures.methods) == [method]
    assert figures.holds.number((method, "order")) == 1
