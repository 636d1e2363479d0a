# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.model.pods.pod import PodSpec
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.pod_claims import NotThere, claims_of_pod, made_name
from kepd_devices.manifest.reading import DeviceObjects, read_device_objects
from packages.devices.tests.written import CLAIM, POD, TEMPLATE

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: a, image: "i:1"}]}
"""


def pod(text: str = POD, *, gives_devices: bool = True) -> PodSpec:
    found = parse_objects("/m/pod.yaml", text.encode(), NodeIdentity("here", False, gives_devices))
    assert [str(one) for one in found.findings] == []
    return found.pods[0]


def objects(*texts: str) -> DeviceObjects:
    return read_device_objects({"/m/a.yaml": "---\n".join(texts).encode()}, Reader("here"))


def test_a_pod_has_claims_that_are_there_and_those_that_are_made_for_it() -> None:
    """DVM-24."""
    made, named = claims_of_pod(pod(), objects(CLAIM, TEMPLATE))

    assert made.claim.key == "default/web-fast-sc6dm"
    assert made.claim.metadata.labels == {"made": "yes"}
    assert made.claim.metadata.annotations == {"note": "text", "resource.kubernetes.io/pod-claim-name": "fast"}
    assert (made.is_made, made.entries) == (True, ("fast",))
    assert (named.claim.key, named.is_made, named.entries) == ("default/gpus", False, ("shared",))


def test_the_same_pod_gets_the_same_claim_again_and_another_pod_another() -> None:
    """DVM-24."""
    there = objects(CLAIM, TEMPLATE)
    first, again = (claims_of_pod(pod(), there)[0].claim for _ in range(2))
    other = claims_of_pod(pod(POD.replace("4711", "4712")), there)[0].claim

    assert first == again
    assert first.metadata.uid != other.metadata.uid
    assert first.metadata.name != other.metadata.name


def test_another_spec_is_another_claim_unless_it_has_a_uid() -> None:
    """DVM-25."""

    def uid(text: str) -> str:
        return claims_of_pod(pod(), objects(text, TEMPLATE))[1].claim.metadata.uid

    two, one = CLAIM, CLAIM.replace("count: 2", "count: 1")

    assert uid(two) == uid(two + "\n# a word\n")
    assert uid(two) != uid(one)
    assert uid(two.replace("{name: gpus", '{uid: "7", name: gpus')) == "7"


def test_two_entries_may_mean_one_claim() -> None:
    text = POD.replace("resourceClaimTemplateName: one-gpu", "resourceClaimName: gpus")

    assert [one.entries for one in claims_of_pod(pod(text), objects(CLAIM))] == [("fast", "shared")]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [((TEMPLATE,), "claim default/gpus is not there"), ((CLAIM,), "claim template default/one-gpu is not there")],
)
def test_a_pod_waits_for_what_is_not_there(texts: tuple[str, ...], complaint: str) -> None:
    """DVM-23."""
    with pytest.raises(NotThere, match=complaint):
        claims_of_pod(pod(), objects(*texts))


def test_long_names_are_cut_in_proportion() -> None:
    """DVM-24."""
    assert made_name("web", "fast", "u").rpartition("-")[0] == "web-fast"
    assert made_name("w" * 70, "f" * 30, "u").rpartition("-")[0] == "w" * 39 + "-" + "f" * 16
    assert all(len(made_name("w" * 253, "f" * length, "u")) <= 63 for length in (1, 30, 63))
    assert ".-" not in made_name("w" * 39 + "." + "w" * 30, "f" * 30, "u")


@pytest.mark.parametrize("name", ["cdi.k8s.io/gpu", "kepd.dev/devices.claims", "kepd.dev/devices.0"])
def test_a_manifest_cannot_name_devices_itself(name: str) -> None:
    """DVF-7: neither a pod, nor one that a workload makes."""
    note = f"annotations: {{{name}: example.com/gpu=0}}"
    template = DEPLOYMENT.replace("labels: {a: b}}", f"labels: {{a: b}}, {note}}}")
    for text, path in (
        (POD.replace("name: web,", f"name: web, {note},"), "metadata"),
        (template, "spec.template.metadata"),
    ):
        found = parse_objects("/m/a.yaml", text.encode(), NodeIdentity("here", False, True))
        (finding,) = found.findings
        assert (found.pods, found.workloads) == ([], [])
        assert f"{path}.annotations[{name}]" in str(finding)
        assert "kepd alone writes this" in str(finding)


@pytest.mark.parametrize("field", ["devices: [gpu-0]", "cdiDevices: [example.com/gpu=0]", "deviceIDs: [gpu-0]"])
def test_no_field_of_a_container_names_devices(field: str) -> None:
    """DVF-7."""
    text = POD.replace("image: i:1", f"image: i:1\n    {field}")
    found = parse_objects("/m/a.yaml", text.encode(), NodeIdentity("here", False, True))

    assert found.pods == []
    assert [field.partition(":")[0] in str(one) for one in found.findings] == [True]
