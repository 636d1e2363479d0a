# SPDX-License-Identifier: Apache-2.0
"""What a kepd that begins anew knows of pods."""

import json

import pytest
from msgspec.structs import replace

from agent.pods.plan.remembered import ContainerMemory, Memory, Moment, PodOutcome, decode_record, encode_record
from agent.pods.plan.restart import BackOff
from agent.pods.plan.stop import after_step
from agent.pods.plan.stop_state import ContainerEnding, HookPhase, RunHook, Trigger, begin_stop
from agent.pods.run.metrics import PodMetrics
from agent.pods.runtime.environment import ClaimPlace
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage, orphan_spec
from tests.pods.pods import container, make_pod

STOP = begin_stop(Trigger.DELETE, [ContainerEnding(name="app", hook="exec", waits_for=frozenset({"x"}))], 30, 5.0)
MEMORY = Memory(
    first_seen_s=4.0,
    first_seen_wall_s=1000.0,
    containers={"app": ContainerMemory(instance="c1", is_started=True, backoff=BackOff(restarts=3, tried_s=9.0))},
    passed=frozenset({"init"}),
    stop=STOP,
    stop_cause="removed",
)


def test_a_record_comes_back_as_it_was() -> None:
    """ADO-04."""
    moments = [Moment(at_s=1.0, kind="exit", container="app", text="0")]
    content = encode_record(make_pod([container("app", args=["-v"])]), MEMORY, moments, "boot")
    record = decode_record(content, "boot", 50.0, 1046.0)

    assert (record.pod, record.memory, record.moments) == (
        make_pod([container("app", args=["-v"])]),
        MEMORY,
        tuple(moments),
    )


def test_hooks_that_ran_are_lost_and_not_run_again() -> None:
    """HOK-12, TRM-23."""
    memory = replace(MEMORY, stop=after_step(STOP, RunHook("app"), 6.0))
    memory = memory.changed("app", lambda one: replace(one, post_start=HookPhase.RUNNING))
    record = decode_record(encode_record(make_pod(), memory, (), "boot"), "boot", 50.0, 1046.0)

    assert record.memory.stop is not None
    assert record.memory.stop.containers[0].hook_phase is HookPhase.FAILED
    assert record.memory.of("app").post_start is HookPhase.CANCELLED


def test_after_a_reboot_counts_and_outcomes_stay_and_moments_of_the_clock_do_not() -> None:
    """ADO-05, CMP-06."""
    memory = replace(MEMORY, outcome=PodOutcome(phase="Succeeded"))
    record = decode_record(encode_record(make_pod(), memory, (), "boot"), "other", 7.0, 1100.0)

    assert (record.memory.stop, record.memory.outcome) == (None, PodOutcome(phase="Succeeded"))
    assert record.memory.of("app").backoff == BackOff(restarts=3, tried_s=0.0)
    assert record.memory.first_seen_s == 7.0 - 100.0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pod": 1}'])
def test_what_nobody_can_read_is_told(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_record(content, "boot", 0.0, 0.0)


def test_an_orphan_has_the_grace_and_the_hooks_of_its_annotations() -> None:
    """TRM-30."""
    notes = {
        "io.kubernetes.pod.terminationGracePeriod": "7",
        "io.kubernetes.container.preStopHandler": '{"sleep":{"seconds":3}}',
    }
    sandbox = SeenSandbox(id="s", namespace="d", name="w", uid="u")
    one = Instance(id="c", name="app", sandbox_id="s", stage=Stage.RUNNING, image="i", notes=notes)
    pod = orphan_spec(SeenPod((sandbox,), (one,)))

    assert (pod.key, pod.uid, pod.grace_s) == ("d/w", "u", 7)
    hook = pod.spec.containers[0].pre_stop
    assert hook is not None
    assert hook.sleep is not None
    assert hook.sleep.seconds == 3


def test_metrics_are_families_of_their_names() -> None:
    metrics = PodMetrics()
    metrics.pod_started(0.2, 0.2)
    metrics.pod_stopped("in_time", 400.0)
    metrics.restarted("main")
    metrics.hook_ended("preStop", "ok", 1.0)
    metrics.probe_ran("liveness", 0.002)
    families = {family.name: family for family in metrics.families()}

    assert set(families) == {
        "kepd_node_drain_began_timestamp_seconds", "kepd_node_drain_pods",
        "kepd_pods", "kepd_pod_container_restarts", "kepd_pod_start_duration_seconds",
        "kepd_pod_stop_duration_seconds", "kepd_pod_hook_duration_seconds", "kepd_pod_probe_lag_seconds",
        "kepd_pod_probe_duration_seconds", "kepd_container_start_duration_seconds",
        "kepd_evictions", "kepd_node_condition", "kepd_pod_start_total_duration_seconds",
        "kepd_pod_start_sli_duration_seconds", "kepd_checkpoints", "kepd_checkpoint_bytes", "kepd_checkpoint_seconds",
    }  # fmt: skip
    stops = {sample.labels.get("le"): sample.value for sample in families["kepd_pod_stop_duration_seconds"].samples}
    assert (stops["300.0"], stops["+Inf"], stops[None]) == (0, 1, 400.0)


def test_a_kepd_that_knows_no_claims_finds_their_paths_in_its_place() -> None:
    """It would take the volume of a database for an empty one."""
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "emptyDir": {}}]
    pod = make_pod(volumes=volumes)
    content = encode_record(pod, MEMORY, (), "boot", {"data": ClaimPlace("/srv/claims/default/data", is_made=True)})
    older = json.loads(content.replace(b"persistentVolumeClaim", b"unknown"))["pod"]["spec"]["volumes"]

    assert older[0]["hostPath"] == {"path": "/srv/claims/default/data"}
    assert "hostPath" not in older[1]
    assert decode_record(content, "boot", 50.0, 1046.0).pod.spec == pod.spec
    assert decode_record(encode_record(pod, MEMORY, (), "boot"), "boot", 50.0, 1046.0).pod.spec == pod.spec
