# SPDX-License-Identifier: Apache-2.0
"""Manifests of Deployments, DaemonSets and Jobs: what they become, and what is refused by its path."""

import pytest
from msgspec.structs import replace

from agent.model.manifests.snapshot import ManifestSnapshot
from agent.pods.manifest.bound import MOST_MADE
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.manifest.reading import ReadManifest
from agent.pods.workloads.job import JobRules
from agent.pods.workloads.reading import workload_warnings
from agent.pods.workloads.rollout import RolloutRules
from agent.pods.workloads.validation import MOST_REPLICAS
from agent.pods.workloads.workload import Workload
from tests.pods.reading import read_pods
from tests.pods.run.test_workloads import daemon_set, deployment, job

NODE = NodeIdentity("n", has_name_suffix=True)


def read(content: bytes) -> Workload:
    found = parse_objects("/m/f", content, NODE)
    assert found.findings == []
    return found.workloads[0]


def faults(content: bytes) -> list[str]:
    found = parse_objects("/m/f", content, NODE)
    assert not (found.findings and found.workloads)
    return [f"{one.path}: {one.text}" for one in found.findings]


def rolling(content: bytes) -> tuple[int, int, int]:
    rules = read(content).rules
    assert isinstance(rules, RolloutRules)
    return rules.replicas, rules.most_unavailable, rules.most_surge


@pytest.mark.parametrize(
    ("replicas", "given", "expected"),
    [
        (3, "", (3, 0, 1)),
        (10, "", (10, 2, 3)),
        (1, "{maxSurge: 0, maxUnavailable: 25%}", (1, 1, 0)),
        (4, "{maxSurge: 50%, maxUnavailable: 0}", (4, 0, 2)),
        (2, "{maxSurge: 0, maxUnavailable: 5}", (2, 2, 0)),
    ],
)
def test_shares_become_numbers_of_pods(replicas: int, given: str, expected: tuple[int, int, int]) -> None:
    """WL-4."""
    more = f"  strategy: {{rollingUpdate: {given}}}\n" if given else ""
    assert rolling(deployment(replicas, more=more)) == expected


def test_a_daemon_set_replaces_its_pod_at_once_or_adds_one_first() -> None:
    assert rolling(daemon_set()) == (1, 1, 0)
    surge = "  updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n"
    assert rolling(daemon_set(more=surge)) == (1, 0, 1)


def test_a_job_without_numbers_runs_once_and_one_with_parallelism_alone_until_a_pod_succeeds() -> None:
    assert read(job()).rules == JobRules()
    assert read(job("  parallelism: 3\n")).rules == JobRules(completions=None, parallelism=3)
    assert read(job(policy="OnFailure")).rules == JobRules(restarts_inside=True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (deployment(MOST_REPLICAS + 1), "spec.replicas: Invalid value: 251: must be between 0 and 250"),
        (deployment(more="  replcas: 1\n"), 'spec.replcas: not supported by this version; did you mean "replicas"?'),
        (deployment(more="  strategy: {type: Blue}\n"), "spec.strategy.type: Unsupported value"),
        (
            deployment(more="  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 0%}}\n"),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 where maxSurge is 0 as well",
        ),
        (
            deployment(more="  strategy: {rollingUpdate: {maxSurge: some}}\n"),
            'spec.strategy.rollingUpdate.maxSurge: Invalid value: "some": must be a number',
        ),
        (deployment().replace(b"app: web}}\n  t", b"app: db}}\n  t"), "spec.template.metadata.labels: Invalid value"),
        (deployment().replace(b"apps/v1", b"v1"), "apiVersion: must be apps/v1"),
        (deployment(image="''"), "spec.template.spec.containers[0].image: Required value"),
        (deployment(more="      restartPolicy: Never\n"), "spec.template.spec.restartPolicy: Unsupported value"),
        (deployment(more="      activeDeadlineSeconds: 5\n"), "spec.template.spec.activeDeadlineSeconds: Forbidden"),
        (job(policy="Always"), "spec.template.spec.restartPolicy: Unsupported value"),
        (job("  completionMode: Mixed\n"), 'spec.completionMode: Unsupported value: "Mixed"'),
        (job("  completionMode: Indexed\n  parallelism: 2\n"), "spec.completions: Required value"),
        (job("  podFailurePolicy: {rules: [{action: Stop}]}\n"), "spec.podFailurePolicy.rules[0].action: Unsupported"),
        (job("  podFailurePolicy: {rules: [{action: FailIndex}]}\n"), "spec.podFailurePolicy.rules[0].action: Invalid"),
        (
            job("  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: '0-'}]}\n"),
            "spec.successPolicy.rules[0].succeededIndexes: Invalid",
        ),
        (job("  backoffLimitPerIndex: 1\n"), "spec.backoffLimitPerIndex: Forbidden: needs completionMode Indexed"),
        (job("  parallelism: -1\n"), "spec.parallelism: Invalid value: -1"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_its_path(content: bytes, expected: str) -> None:
    """WL-1."""
    assert [one for one in faults(content) if one.startswith(expected)], faults(content)


def test_only_the_template_makes_another_revision() -> None:
    before = read(deployment())

    assert read(b"# words\n" + deployment(5, more="  minReadySeconds: 3\n")).revision == before.revision
    assert read(deployment(image="j")).revision != before.revision


def test_names_of_pods_are_the_same_each_time_and_skip_those_that_are_taken() -> None:
    workload = read(deployment())
    first = next(workload.names(lambda _: False))

    assert next(workload.names(lambda _: False)) == first
    assert next(workload.names(lambda name: name == first)) != first


def test_a_port_of_the_node_and_a_change_that_waits_for_itself_are_warned_about() -> None:
    port = b"ports: [{containerPort: 80, hostPort: 80}], imagePullPolicy"
    workload = read(deployment(2).replace(b"imagePullPolicy", port))

    assert [path for path, _ in workload_warnings(workload)] == ["spec.replicas", "spec.strategy"]
    assert list(workload_warnings(read(deployment()))) == []


def test_a_fault_keeps_the_last_good_version_and_a_name_belongs_to_the_first() -> None:
    good = read_pods(ManifestSnapshot({"/a": deployment()}), ReadManifest(), NODE)
    bad = read_pods(ManifestSnapshot({"/a": deployment(-1)}), good, NODE)
    twice = read_pods(ManifestSnapshot({"/a": deployment(), "/b": deployment(1)}), ReadManifest(), NODE)

    assert bad.workloads == good.workloads
    assert bad.workloads
    assert [one.file for one in twice.workloads.values()] == ["/a"]
    assert "is already in /a" in str(twice.findings[0])


def test_all_together_ask_for_a_bounded_number_of_pods() -> None:
    files = {
        f"/{place}": deployment(MOST_REPLICAS).replace(b"name: web", f"name: web{place}".encode()) for place in range(5)
    }
    reading = read_pods(ManifestSnapshot(files), ReadManifest(), NODE)

    assert sum(one.most_pods for one in reading.workloads.values()) == MOST_MADE
    assert "/4: spec: Deployment default/web4 and those in force ask for more than" in str(reading.findings[0]).replace(
        ":2:", ":"
    )
    assert reading.duplicates == frozenset(), "it is no second one of its name"
    assert replace(RolloutRules(), replicas=0).most_pods == 0


def stateful(more: str = "", claim: str = "") -> bytes:
    text = deployment(more=more).decode().replace("kind: Deployment", "kind: StatefulSet")
    claims = f"  volumeClaimTemplates:\n  - {claim}\n" if claim else ""
    return (text + claims).encode()


GOOD_CLAIM = "{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (stateful("  podManagementPolicy: Loose\n"), "spec.podManagementPolicy: Unsupported value"),
        (stateful("  serviceName: A_b\n"), "spec.serviceName: Invalid value"),
        (stateful("  ordinals: {start: -1}\n"), "spec.ordinals.start: Invalid value: -1"),
        (stateful("  ordinals: {start: 2147483647}\n"), "spec.ordinals.start: Invalid value"),
        (stateful("  ordinals: {begin: 1}\n"), "spec.ordinals.begin: not supported by this version"),
        (stateful("  minReadySeconds: -1\n"), "spec.minReadySeconds: Invalid value: -1"),
        (stateful("  revisionHistoryLimit: -1\n"), "spec.revisionHistoryLimit: Invalid value: -1"),
        (stateful("  updateStrategy: {type: Recreate}\n"), "spec.updateStrategy.type: Unsupported value"),
        (
            stateful("  updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}\n"),
            "spec.updateStrategy.rollingUpdate: Forbidden: only type RollingUpdate has it",
        ),
        (
            stateful("  updateStrategy: {rollingUpdate: {partition: -2}}\n"),
            "spec.updateStrategy.rollingUpdate.partition: Invalid value: -2",
        ),
        *(
            (
                stateful(f"  updateStrategy: {{rollingUpdate: {{maxUnavailable: {value}}}}}\n"),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value",
            )
            for value in ("0", "0%", "some", "-1", "101%")
        ),
        (
            stateful("  persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}\n"),
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value",
        ),
        (stateful(claim="{metadata: {name: data}}"), "spec.volumeClaimTemplates[0].spec.accessModes: Required value"),
        (
            stateful(claim=GOOD_CLAIM.replace("1Gi", "much")),
            'spec.volumeClaimTemplates[0].spec.resources.requests[storage]: Invalid value: "much"',
        ),
        (
            stateful(claim=GOOD_CLAIM.replace("{requests: {storage: 1Gi}}", "{}")),
            "spec.volumeClaimTemplates[0].spec.resources.requests[storage]: Required value",
        ),
        (
            stateful(claim=GOOD_CLAIM.replace("ReadWriteOnce", "WriteOnly")),
            "spec.volumeClaimTemplates[0].spec.accessModes[0]: Unsupported value",
        ),
        (
            stateful(claim=GOOD_CLAIM.replace("resources", "volumeMode: Block, resources")),
            "spec.volumeClaimTemplates[0].spec.volumeMode: Forbidden: claims are directories here",
        ),
        (
            stateful(claim=GOOD_CLAIM.replace("resources", "dataSource: {name: x}, resources")),
            "spec.volumeClaimTemplates[0].spec.dataSource: Forbidden: nothing here fills a volume",
        ),
        (
            stateful(claim=GOOD_CLAIM.replace("name: data", "name: Da_ta")),
            "spec.volumeClaimTemplates[0].metadata.name: Invalid value",
        ),
        (
            stateful(claim=f"{GOOD_CLAIM}\n  - {GOOD_CLAIM}"),
            "spec.volumeClaimTemplates[1].metadata.name: Duplicate value",
        ),
    ],
)
def test_a_bad_stateful_set_is_one_clear_line(content: bytes, expected: str) -> None:
    identity = NodeIdentity("n", has_name_suffix=False)
    found = [str(one).partition(": ")[2] for one in parse_objects("/m/f.yaml", content, identity).findings]

    assert [one for one in found if one.startswith(expected)], found


def test_a_claim_is_a_volume_of_the_template() -> None:
    mounted = stateful(claim=GOOD_CLAIM).replace(b"image: ", b"volumeMounts: [{name: data, mountPath: /d}], image: ", 1)
    workload = read(mounted)
    volume = workload.pod("web-0", "u").spec.volumes[0]

    assert volume.persistent_volume_claim is not None
    assert volume.persistent_volume_claim.claim_name == "data-web-0"


def test_the_bound_refuses_who_comes_and_never_who_is_in_force() -> None:
    """MAN-15: whatever the files are called; one that is to grow beyond it stays as it was."""
    parts = [deployment(MOST_REPLICAS).replace(b"name: web", b"name: web%d" % place) for place in range(6)]
    smaller = parts[0].replace(b"replicas: 250", b"replicas: 1")
    mine, theirs, last = b"---\n".join(parts[:4]), b"---\n".join(parts[4:]), parts[4].replace(b"250", b"249")
    reading, seen = ReadManifest(), []
    for files in (
        {"/z": mine}, {"/z": mine, "/a": theirs}, {"/z": b"---\n".join((smaller, *parts[1:4]))},
        {"/z": b"---\n".join((smaller, *parts[1:4])), "/a": last}, {"/z": mine, "/a": last},
    ):  # fmt: skip
        reading = read_pods(ManifestSnapshot(files), reading, NODE)
        asked = sorted((one.name[-1], one.most_pods) for one in reading.workloads.values())
        seen.append((dict(asked), [str(one).rpartition("; ")[2] for one in reading.findings]))
    full, filled = {"0": 250, "1": 250, "2": 250, "3": 250}, {"0": 1, "1": 250, "2": 250, "3": 250, "4": 249}

    assert seen == [
        (full, []),
        (full, ["it is ignored"] * 2),
        ({**full, "0": 1}, []),
        (filled, []),
        (filled, ["it stays as it was"]),
    ]


def test_a_suspended_job_asks_for_no_pods() -> None:
    suspended = read(job("  suspend: true\n  parallelism: 250\n  completions: 250\n"))

    assert suspended.most_pods == 1, "but it is one of a bounded number of workloads"


def test_who_has_a_name_keeps_it_whatever_the_files_are_called() -> None:
    first = read_pods(ManifestSnapshot({"/z": deployment(2)}), ReadManifest(), NODE)
    rival = read_pods(ManifestSnapshot({"/a": deployment(0), "/z": deployment(2)}), first, NODE)
    moved = read_pods(ManifestSnapshot({"/a": deployment(0)}), rival, NODE)

    assert rival.workloads == first.workloads
    assert "is already in /z" in str(rival.findings[0])
    assert [one.most_pods for one in moved.workloads.values()] == [1]


def test_a_claim_may_not_have_a_name_that_is_too_long_for_one() -> None:
    """WL-25."""
    identity = NodeIdentity("n", has_name_suffix=False)
    content = stateful("  ordinals: {start: 7}\n", GOOD_CLAIM.replace("name: data", f"name: {'c' * 63}"))
    longest = 253 - 63 - len("--9")
    texts = [content.replace(b"{name: web}", b"{name: %s}" % (b"d" * length)) for length in (longest, longest + 1)]
    fits, too_long = (parse_objects("/m/f", text, identity) for text in texts)

    assert [len(one.claims) for one in fits.workloads] == [1]
    assert too_long.findings[0].text.startswith("Too long: ccc")
