# SPDX-License-Identifier: Apache-2.0
"""What of the suite can be tested without it: its lists, its reports, the table, and that several run at a time."""

import io
import json
import tarfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.conformance.completed import completed
from tests.conformance.suite import Result, Spec, junit, quick_specs, result_of, run_all, specs, table

SPEC = Spec("node", "[sig-node] Pods should [Conformance]")


def report(folder: Path, **more: object) -> Path:
    path = folder / "r.json"
    one = {
        "LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "should [Conformance]",
        "RunTime": 2e9, **more,
    }  # fmt: skip
    path.write_text(json.dumps([{"SpecReports": [one]}]))
    return path


def test_each_spec_is_listed_once_and_the_quick_ones_are_of_all_groups() -> None:
    names = [one.name for one in specs()]
    assert len(names) == len(set(names)) >= 400
    assert {one.group for one in quick_specs()} == {one.group for one in specs()}


def test_a_result_is_what_the_report_says_or_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no door\n")
    failure = {"Failure": {"Message": "was\nnot"}}
    assert result_of(SPEC, report(tmp_path, State="passed"), log, 9.0) == Result(SPEC, "passed", 2.0)
    assert result_of(SPEC, report(tmp_path, State="failed", **failure), log, 9.0).message == "was not"
    skipped = result_of(SPEC, report(tmp_path, State="skipped"), log, 9.0)
    assert (skipped.status, skipped.message) == ("not run", "no door")
    assert result_of(SPEC, tmp_path / "none", log, 9.0).status == "not run"


def test_the_table_counts_by_group_and_names_what_failed() -> None:
    found = [Result(SPEC, "passed", 1.0), Result(Spec("apps", "b"), "failed", 3.0, "why\x00")]
    assert table(found).splitlines()[:4] == [
        "group      passed   of", "node            1    1", "apps            0    1", "all             1    2",
    ]  # fmt: skip
    assert "failed after 3 s: b" in table(found)
    assert [case.get("name") for case in ET.fromstring(junit(found))] == [SPEC.name, "b"]


def test_all_are_asked_though_several_run_at_a_time() -> None:
    chosen, told = [Spec("node", str(number)) for number in range(20)], list[Result]()
    done = run_all(chosen, 4, lambda spec, _: Result(spec, "passed", 0.0), told.append)
    assert sorted(one.spec.name for one in done) == sorted(one.name for one in chosen)
    assert done == told


def archive(folder: Path, name: str) -> Path:
    """One layer with one file."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        layer.addfile(tarfile.TarInfo("agnhost"))
    blobs = {"l": raw.getvalue(), "c": json.dumps({"rootfs": {"diff_ids": ["sha256:l"]}}).encode()}
    blobs["m"] = json.dumps({"config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]}).encode()
    path = folder / name
    with tarfile.open(path, "w") as made:
        index = json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode()
        for where, content in {"index.json": index, **{f"blobs/sha256/{key}": it for key, it in blobs.items()}}.items():
            entry = tarfile.TarInfo(where)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return path


def test_an_image_without_its_certificate_gets_one_and_once_is_enough(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    given = archive(tmp_path, "agnhost_1.tar")
    made = completed(given, tmp_path / "made")
    assert made != given
    assert completed(made, tmp_path) == made
    other = archive(tmp_path, "busybox_1.tar")
    assert completed(other, tmp_path / "made") == other
