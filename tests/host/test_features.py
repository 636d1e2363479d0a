# SPDX-License-Identifier: Apache-2.0
"""What a node says that it can do is what its planners do with the same facts."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.config.document import Configuration
from agent.config.keys import all_keys
from agent.host.features import ENTRIES, KEYS, feature_rows
from agent.host.node_view import node_features
from agent.host.tracing import tracing_faults
from agent.kinds.own_shape import own_object
from agent.model.nodes.control_group import GroupShape
from agent.model.nodes.feature import FeatureFacts, FeatureRow
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.attach.settings import eviction_rules
from agent.pods.runtime.cri_config import check_support
from agent.pods.runtime.environment import ConfigProblem
from tests.host.test_traces import with_endpoint
from tests.pods.pods import make_pod

EVERYTHING = FeatureFacts(
    runtime=RuntimeFeatures(
        name="containerd", version="2.1.9", user_namespaces=frozenset({""}), recursive_read_only=frozenset({""}),
        has_group_policy=True,
    ),
    groups=GroupShape(version=2, has_swap_limit=True),
    release=(6, 18),
    has_pressure=True,
    has_journalctl=True,
    can_trace=True,
    planes=frozenset({"images", "pods", "policies", "services", "devices"}),
    keys={
        "pods.swap": "LimitedSwap", "pods.memoryQos": True, "pods.defaultSeccomp": "RuntimeDefault",
        "pods.eviction.mode": "auto", "devices.plugins.enabled": True, "services.backend": "nftables",
        "services.flowtable.devices": ("eth0",), "services.nodePortAddresses": ("primary", "localhost"),
        "telemetry.nodeLogs.enabled": True,
        "telemetry.tracing.endpoint": "http://127.0.0.1:4317",
    },
)  # fmt: skip
OLD = RuntimeFeatures(name="containerd", version="1.6.20")


def row(facts: FeatureFacts, keps: str) -> FeatureRow:
    return next(one for one in feature_rows(facts) if one.keps == keps)


def without(key: str, value: object) -> FeatureFacts:
    return replace(EVERYTHING, keys={**EVERYTHING.keys, key: value})


def test_where_everything_is_there_everything_works() -> None:
    """FEA-01: but for checkpoints, of which only the runtime knows."""
    own = list(feature_rows(EVERYTHING))[: len(ENTRIES)]
    assert {one.keps: one.why for one in own if one.state != "works"} == {
        "2008": "containerd 2.1.9 says when asked for one whether it can; it can restore one"
    }
    assert len({(one.keps, one.what) for one in feature_rows(EVERYTHING)}) == len(list(feature_rows(EVERYTHING)))


@pytest.mark.parametrize(
    ("facts", "keps", "state", "why"),
    [
        (replace(EVERYTHING, runtime=OLD), "127", "needs", "containerd 2.0 or CRI-O 1.30"),
        (replace(EVERYTHING, release=(6, 1)), "127", "partly", "Linux 6.3"),
        (replace(EVERYTHING, runtime=OLD), "2008", "partly", "it cannot restore one"),
        (replace(EVERYTHING, runtime=OLD), "3619", "needs", "here is containerd 1.6.20"),
        (replace(EVERYTHING, runtime=OLD), "3857", "needs", "containerd 2.0"),
        (replace(EVERYTHING, runtime=OLD), "4639", "needs", "containerd 2.1"),
        (replace(EVERYTHING, groups=GroupShape()), "2400", "needs", "swap that control groups can limit"),
        (without("pods.swap", "NoSwap"), "2400", "off", "pods.swap: LimitedSwap"),
        (replace(EVERYTHING, groups=GroupShape(version=1)), "2570", "needs", "version 2"),
        (without("pods.memoryQos", False), "2570", "off", "pods.memoryQos: true"),
        (without("pods.defaultSeccomp", "Unconfined"), "2413", "off", "pods.defaultSeccomp: RuntimeDefault"),
        (without("devices.plugins.enabled", False), "3573", "off", "devices.plugins.enabled: true"),
        (without("services.backend", "iptables"), "3866", "off", "services.backend: nftables"),
        (without("services.backend", "iptables"), "4963", "needs", "services.backend: nftables"),
        (without("services.flowtable.devices", ()), "4963", "off", "services.flowtable.devices"),
        (without("services.nodePortAddresses", ()), "6032", "off", "services.nodePortAddresses"),
        (without("pods.eviction.mode", "off"), "", "off", "pods.eviction.mode: auto"),
        (replace(EVERYTHING, has_kubelet=True), "", "off", "pods.eviction.mode: on"),
        (without("telemetry.nodeLogs.enabled", False), "2258", "off", "telemetry.nodeLogs.enabled: true"),
        (replace(EVERYTHING, has_journalctl=False), "2258", "partly", "needs journalctl"),
        (without("telemetry.tracing.endpoint", ""), "647, k/k#119949", "off", "telemetry.tracing.endpoint: http://"),
        (replace(EVERYTHING, can_trace=False), "647, k/k#119949", "needs", "pip install 'kepd[otel]'"),
        (replace(EVERYTHING, has_pressure=False), "4205", "needs", "psi=1"),
        (replace(EVERYTHING, planes=frozenset({"services"})), "753", "off", "pods.enabled: true"),
        (replace(EVERYTHING, planes=frozenset({"proxy"})), "753", "works", ""),
        (replace(EVERYTHING, planes=frozenset({"pods"})), "3063, 4381", "off", "devices.manager.enabled: true"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(facts: FeatureFacts, keps: str, state: str, why: str) -> None:
    found = row(facts, keps)
    assert (found.state, why in found.why) == (state, True), found


def refuses(runtime: RuntimeFeatures, **spec: Any) -> bool:
    try:
        check_support(make_pod(**spec), runtime)
    except ConfigProblem:
        return True
    return False


@pytest.mark.parametrize("runtime", [EVERYTHING.runtime, OLD])
def test_planners_refuse_what_a_row_says_is_missing_and_nothing_else(runtime: RuntimeFeatures) -> None:
    """FEA-02."""
    facts = replace(EVERYTHING, runtime=runtime)
    policy = {"securityContext": {"supplementalGroupsPolicy": "Strict"}}
    assert refuses(runtime, hostUsers=False) is (row(facts, "127").state == "needs")
    assert refuses(runtime, **policy) is (row(facts, "3619").state == "needs")
    assert runtime.has_image_volumes is (row(facts, "4639").state == "works")
    for can_trace in (True, False):
        faults = list(tracing_faults(with_endpoint("http://127.0.0.1:4317"), has=lambda can=can_trace: can))
        assert (faults == []) is (row(replace(facts, can_trace=can_trace), "647, k/k#119949").state == "works")
    for has_kubelet in (True, False):
        rules = eviction_rules(Configuration().pods.eviction, has_kubelet=has_kubelet)
        assert (rules is None) is (row(replace(facts, has_kubelet=has_kubelet), "").state == "off")


def test_rows_depend_on_keys_that_exist() -> None:
    assert set(KEYS) <= set(all_keys(Configuration))
    assert set(EVERYTHING.keys) == set(KEYS)


class Running:
    configuration = Configuration()


async def test_the_answer_has_the_facts_that_it_stands_on() -> None:
    """FEA-03: of this machine, without a runtime."""
    rows = await node_features(Running(), None, {})  # type: ignore[arg-type]
    facts = msgspec.json.decode(msgspec.json.encode(own_object("Feature", rows[0].keps, rows[0])))["status"]["facts"]
    assert facts["release"][0] >= 4
    assert set(facts["keys"]) == set(KEYS)
    assert len(rows) > len(ENTRIES)
