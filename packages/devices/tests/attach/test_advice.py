# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.model.runtime.features import RuntimeFacts, RuntimeFeatures
from kepd_devices.attach.unit import cdi_advice


class Seen:
    def __init__(self, features: RuntimeFeatures, *, is_connected: bool = True) -> None:
        self.facts = RuntimeFacts("unix:///run/c.sock", is_connected=is_connected)
        self._features = features

    async def features(self) -> RuntimeFeatures:
        return self._features


@pytest.mark.parametrize(
    ("features", "is_told"),
    [
        (RuntimeFeatures(name="containerd", version="1.6.20"), True),
        (RuntimeFeatures(name="containerd", version="2.0.1", resolves_cdi=True), False),
        (RuntimeFeatures(name="cri-o", version="1.27.0"), True),
        (RuntimeFeatures(name="cri-o", version="1.28.0"), False),
    ],
)
async def test_doctor_says_where_a_runtime_resolves_no_cdi_ids(features: RuntimeFeatures, *, is_told: bool) -> None:
    """DVC-1."""
    assert [one.is_note for one in await cdi_advice(Seen(features), ())] == [True] * is_told
    assert await cdi_advice(Seen(features, is_connected=False), ()) == []


async def test_doctor_says_where_the_runtime_does_not_look_for_cdi_files() -> None:
    """DVC-2: what a runtime does not tell is not judged."""
    runtime = RuntimeFeatures(name="containerd", version="2.1.9", resolves_cdi=True, cdi_directories=("/var/run/cdi",))
    silent = RuntimeFeatures(name="cri-o", version="1.30.0")

    assert [one.wanted for one in await cdi_advice(Seen(runtime), ("/run/cdi", "/srv/cdi"))] == [
        "/srv/cdi too, which devices.cdi names"
    ]
    assert await cdi_advice(Seen(silent), ("/srv/cdi",)) == []
