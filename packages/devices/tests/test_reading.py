# SPDX-License-Identifier: Apache-2.0
import threading
from pathlib import Path

import pytest

from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import DeviceObjects, device_objects_in, device_reading, read_device_objects
from kepd_devices.run.own_thread import in_own_thread
from packages.devices.tests.written import CLAIM, CLASS, SLICE, TEMPLATE
from tests.objects.looks import after

READER = Reader("here")


def files_of(*texts: str) -> dict[str, bytes]:
    return {f"/m/{place}.yaml": text.encode() for place, text in enumerate(texts)}


def read(*texts: str, reader: Reader = READER) -> DeviceObjects:
    return read_device_objects(files_of(*texts), reader)


def looked(*looks: dict[str, bytes]) -> DeviceObjects:
    return device_objects_in(after(device_reading(READER), *looks))


def told(found: DeviceObjects) -> list[str]:
    return [str(one) for one in found.findings]


def test_all_four_kinds_are_read_beside_those_of_others() -> None:
    """DVM-20."""
    found = read(CLAIM + "---" + TEMPLATE, CLASS + "---" + SLICE + "---\nkind: Pod\n")

    assert told(found) == []
    assert list(found.claims) == ["default/gpus"]
    assert list(found.templates) == ["default/one-gpu"]
    assert list(found.classes) == ["gpu.example.com"]
    assert [len(one.spec.devices or ()) for one in found.slices] == [3]


def test_lists_are_taken_apart() -> None:
    items = (
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClassList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n"
    )

    assert list(read(items).classes) == ["a", "b"]


def test_v1beta1_says_in_a_request_what_v1_says_in_exactly() -> None:
    """DVM-20."""
    old = CLAIM.replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1").replace("      exactly:\n", "")
    old = old.replace("        deviceClassName", "      deviceClassName").replace("        count", "      count")
    old = old.replace("        selectors", "      selectors")
    slices = SLICE.replace("io/v1", "io/v1beta1").replace(
        "{name: gpu-0, attributes: {model: {string: a100}}}", "{name: gpu-0, basic: {attributes: {a: {int: 1}}}}"
    )
    found, new = read(old, slices), read(CLAIM)

    assert told(found) == []
    assert found.claims["default/gpus"].spec == new.claims["default/gpus"].spec
    assert found.slices[0].spec.devices is not None
    assert found.slices[0].spec.devices[0].attributes["a"].whole == 1


def test_faults_of_v1beta1_name_the_path_as_it_is_written() -> None:
    old = CLAIM.replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1").replace("      exactly:\n", "")
    old = old.replace("        deviceClassName", "      deviceClassName").replace("        count: 2", "      count: 0")
    old = old.replace("        selectors", "      selectors")

    assert told(read(old)) == ["/m/0.yaml:10: spec.devices.requests[0].count: Invalid: is 0; expected 1 or more"]


def test_kinds_of_alpha_versions_name_their_successors() -> None:
    """DVM-20."""
    text = "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: a}\n"

    assert told(read(text)) == [
        "/m/0.yaml:1: kind: ResourceClass is of an alpha version that is gone; its place has a DeviceClass"
    ]


def test_a_slice_is_for_this_node_unless_it_says_otherwise() -> None:
    """DVM-27."""
    one = read(SLICE.replace("  nodeName: here\n", "")).slices[0]
    other = read(SLICE.replace("nodeName: here", "allNodes: true")).slices[0]

    assert (one.spec.node_name, other.spec.node_name) == ("here", None)


def test_a_status_counts_only_where_it_is_asked_for() -> None:
    """DVM-22."""
    status = """
status:
  reservedFor: [{resource: pods, name: web, uid: u}]
  allocation: {devices: {results: [{request: gpu, driver: gpu.example.com, pool: here, device: gpu-0}]}}
"""
    trusted = read(CLAIM + status, reader=Reader("here", trusts_status=True)).claims["default/gpus"]

    assert "status: Forbidden" in told(read(CLAIM + status))[0]
    assert trusted.status.allocation is not None
    assert trusted.status.allocation.devices.results[0].device == "gpu-0"


def test_the_last_good_version_stays_and_the_first_file_wins() -> None:
    """DVV-12."""
    good = read(CLASS, CLAIM)
    broken = files_of(CLASS.replace("device.driver", "device.nothing"), CLAIM, CLAIM)
    later = looked(files_of(CLASS, CLAIM), broken)

    assert later.classes == good.classes
    assert [line.split(": ", 1)[1] for line in told(later)][1:] == [
        "metadata.name: ResourceClaim default/gpus is already in /m/1.yaml:2; this one is ignored",
        "the last good version of DeviceClass gpu.example.com stays in force",
    ]
    assert looked(files_of(CLASS, CLAIM), broken, files_of(CLASS)).claims == {}


def test_a_file_that_did_not_change_is_not_read_again() -> None:
    before = after(device_reading(READER), files_of(CLAIM, CLASS))
    now = after(device_reading(READER), files_of(CLAIM, CLASS + "\n"), before=before)

    assert now.files["/m/0.yaml"] is before.files["/m/0.yaml"]
    assert now.files["/m/1.yaml"] is not before.files["/m/1.yaml"]


def test_the_example_is_that_of_the_page() -> None:
    root = Path(__file__).resolve().parents[3]
    example = (root / "examples" / "devices" / "fake.yaml").read_text().partition("\n")[2]

    assert example in (root / "docs" / "devices.md").read_text()
    assert told(read(example)) == []


def test_a_file_with_more_selectors_than_can_be_compiled_soon_changes_nothing() -> None:
    """DVM-20: those of other files are read; one that is written many times is compiled once."""

    def classes(count: int, *, is_one: bool) -> str:
        cel = [f"{0 if is_one else n} == 1 || " + "device.driver == 'x' || " * 200 + "false" for n in range(count)]
        return "---".join(
            f"\napiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: c{n}}}\n"
            f'spec: {{selectors: [{{cel: {{expression: "{text}"}}}}]}}\n'
            for n, text in enumerate(cel)
        )

    found = looked(files_of(CLASS, CLAIM), files_of(classes(40, is_one=False), CLAIM))

    assert list(found.classes) == ["gpu.example.com"]
    assert list(found.claims) == ["default/gpus"]
    assert "/m/0.yaml: has selectors of" in told(found)[0]
    assert "expected at most 131072: share them out to several files" in told(found)[0]
    assert len(read(classes(40, is_one=True)).classes) == 40


async def test_what_cannot_be_broken_off_keeps_no_process_from_ending() -> None:
    """DVM-20: it is no thread of the pool that is waited for at the end."""

    def fails() -> None:
        raise ValueError("no such thing")

    threads: list[threading.Thread] = []
    await in_own_thread(lambda: threads.append(threading.current_thread()))
    with pytest.raises(ValueError, match="no such thing"):
        await in_own_thread(fails)

    assert threads[0].daemon
