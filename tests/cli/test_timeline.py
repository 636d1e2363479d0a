# SPDX-License-Identifier: Apache-2.0
"""The picture of a pod, and plans of ends from files."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from agent.cli.commands.pods.pods import timeline
from agent.cli.commands.pods.stop_plan import stop
from agent.pods.plan.remembered import Moment
from agent.pods.view.timeline import Bar, Picture, draw_picture
from agent.pods.view.timeline_svg import picture_as_svg
from agent.pods.view.timeline_text import picture_as_text

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: GRACE
  initContainers:
  - {name: net, image: "i:1", restartPolicy: Always, lifecycle: {preStop: {sleep: {seconds: 4}}}}
  containers:
  - {name: app, image: "i:1", lifecycle: {preStop: {sleep: {seconds: 10}}}}
"""


def moments() -> list[Moment]:
    return [
        Moment(at_s=100.0, kind="sandbox_made"),
        Moment(at_s=100.5, kind="pull_started", container="app"),
        Moment(at_s=102.0, kind="pull_finished", container="app"),
        Moment(at_s=102.5, kind="started", container="app", seconds=0.5),
        Moment(at_s=110.0, kind="stop_began", seconds=30.0),
        Moment(at_s=110.0, kind="prestop_start", container="app"),
        Moment(at_s=115.0, kind="prestop_end", container="app"),
        Moment(at_s=115.0, kind="stop_signal", container="app"),
    ]


def test_moments_become_bars_and_what_goes_on_has_no_end_yet() -> None:
    picture = draw_picture(moments(), ["app"], 120.0)
    (pod, app) = picture.rows

    assert (picture.origin_s, picture.budgets) == (100.0, ((10.0, 40.0),))
    assert [mark.kind for mark in pod.marks] == ["sandbox", "end begins"]
    assert app.bars == (
        Bar(kind="running", begin_s=2.0, end_s=20.0, is_open=True),
        Bar(kind="pull", begin_s=0.5, end_s=2.0),
        Bar(kind="stopping", begin_s=15.0, end_s=20.0, is_open=True),
        Bar(kind="preStop", begin_s=10.0, end_s=15.0),
    )


def test_nothing_is_a_picture_as_well() -> None:
    assert draw_picture([], [], 5.0) == Picture(origin_s=5.0)
    assert "web" in picture_as_text(Picture(), "web", 80)


@pytest.mark.parametrize("width", [10, 80, 160])
def test_a_picture_fits_into_its_terminal(width: int) -> None:
    lines = picture_as_text(draw_picture(moments(), ["app"], 120.0), "default/web", width).splitlines()

    assert all(len(line) <= max(width, 40) for line in lines[1:4])
    assert "app" in lines[3]


def test_svg_is_well_formed_whatever_names_there_are() -> None:
    picture = draw_picture([Moment(at_s=1.0, kind="exit", container="<a&b>", text='"x"')], [], 2.0)
    root = ET.fromstring(picture_as_svg(picture, "<&>"))

    assert root.tag.endswith("svg")


def run(tmp_path: Path, *flags: str, grace: str = "30") -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("GRACE", grace))
    done = CliRunner().invoke(stop, ["-f", str(path), *flags])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_plan_shows_an_end_before_anybody_does_it(tmp_path: Path) -> None:
    """TL-03, from a file."""
    lines = run(tmp_path, "--exit-after", "5").splitlines()
    listed = [" ".join(line.split()) for line in lines if line.startswith("    ") and " s  " in line]

    assert lines[0] == "end of default/web within 30 s, if programs take 5 s to exit"
    assert listed[1:] == [
        "10.00 s app signal", "15.00 s net signal", "15.00 s app exit 0", "20.00 s pod sandbox stopped",
        "20.00 s net exit 0",
    ]  # fmt: skip


def test_a_plan_with_a_deaf_container_ends_in_a_kill(tmp_path: Path) -> None:
    assert "SIGKILL" in run(tmp_path, "--deaf", "app", "--grace", "12")
    assert "signal" not in run(tmp_path, "--grace", "0").replace("after the signal   S signal", "")


def test_a_plan_as_data(tmp_path: Path) -> None:
    document = json.loads(run(tmp_path, "-o", "json"))

    assert document["budgets"] == [[0.0, 30.0]]


def test_a_plan_of_a_broken_manifest_says_why(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("GRACE", "3"))
    done = CliRunner().invoke(stop, ["-f", str(path)])

    assert "must be non-negative and less than terminationGracePeriodSeconds (3)" in str(done.exception)


LIFE = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  activeDeadlineSeconds: 1
  terminationGracePeriodSeconds: 10
  initContainers:
  - {name: setup, image: "i:1"}
  - {name: net, image: "i:1", restartPolicy: Always, startupProbe: {tcpSocket: {port: 80}}}
  containers:
  - {name: app, image: "i:1", lifecycle: {postStart: {exec: {command: [x]}}, preStop: {sleep: {seconds: 5}}}}
"""


def planned(path: Path, *flags: str) -> str:
    done = CliRunner().invoke(timeline, ["--from-files", str(path), *flags])
    assert done.exit_code == 0, done.exception
    return done.output


def test_a_whole_life_is_drawn_from_a_file(tmp_path: Path) -> None:
    """By the planners that start and end real pods: STA-02 to STA-04, then TRM-10."""
    path = tmp_path / "pod.yaml"
    path.write_text(LIFE)
    lines = planned(path).splitlines()
    listed = [" ".join(line.split()) for line in lines if line.startswith("    ") and " s  " in line]

    assert lines[0] == "default/web, as planned"
    assert next(line for line in lines if line.startswith("budget")).endswith("10 s")
    assert listed[-10:] == [
        "0.00 s pod sandbox", "1.00 s setup exit 0", "2.00 s net started", "3.00 s pod all started",
        "5.00 s pod end begins planned", "10.00 s app signal", "11.00 s net signal", "11.00 s app exit 0",
        "12.00 s pod sandbox stopped", "12.00 s net exit 0",
    ]  # fmt: skip
    assert planned(path, "-o", "svg").startswith("<svg")
    assert json.loads(planned(path, "-o", "json"))["budgets"] == [[5.0, 15.0]]


def test_a_directory_is_drawn_pod_by_pod(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(LIFE)
    (tmp_path / "b.yml").write_text(LIFE.replace("web", "db"))

    assert [line for line in planned(tmp_path).splitlines() if "as planned" in line] == [
        "default/web, as planned", "default/db, as planned",
    ]  # fmt: skip
    assert "web" not in planned(tmp_path, "db")
    missing = CliRunner().invoke(timeline, ["--from-files", str(tmp_path), "none"])
    assert 'has no pod "none"' in str(missing.exception)


def test_without_a_pod_and_without_files_it_is_said_what_would_be_right() -> None:
    done = CliRunner().invoke(timeline, [])

    assert "expected a POD, or --from-files with a manifest" in str(done.exception)


def test_a_later_request_shortens_the_budget_and_a_longer_one_does_not() -> None:
    """TRM-22."""
    more = [
        Moment(at_s=112.0, kind="stop_shortened", seconds=5.0),
        Moment(at_s=113.0, kind="stop_shortened", seconds=90),
    ]

    assert draw_picture([*moments(), *more], ["app"], 120.0).budgets == ((10.0, 17.0),)
