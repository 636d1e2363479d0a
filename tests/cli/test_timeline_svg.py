# SPDX-License-Identifier: Apache-2.0
"""`kepctl timeline -o svg` and `-o html`: files that any browser opens, whatever stands in them."""

import os
import re
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.commands.pods.pods import timeline
from agent.pods.plan.remembered import Moment
from agent.pods.view.timeline import Picture, draw_picture
from agent.pods.view.timeline_svg import picture_as_svg, pictures_as_page

SVG = "{http://www.w3.org/2000/svg}"
CHROMIUM = os.environ.get("KEPD_CHROMIUM", "")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
EMPTY = frozenset({"meta", "rect", "line"})
SIZE = (1060, 420)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  initContainers:
  - {name: net, image: "i:1", restartPolicy: Always}
  containers:
  - {name: app, image: "i:1", readinessProbe: {initialDelaySeconds: 2, tcpSocket: {port: 80}}}
"""


def life() -> Picture:
    return draw_picture(
        [
            Moment(at_s=100.0, kind="sandbox_made"),
            Moment(at_s=100.0, kind="started", container="net"),
            Moment(at_s=100.5, kind="pull_started", container="app"),
            Moment(at_s=102.0, kind="pull_finished", container="app"),
            Moment(at_s=102.0, kind="started", container="app"),
            Moment(at_s=104.0, kind="ready", container="app"),
            Moment(at_s=110.0, kind="stop_began", seconds=30.0),
            Moment(at_s=110.0, kind="prestop_start", container="app"),
            Moment(at_s=112.0, kind="prestop_end", container="app"),
            Moment(at_s=112.0, kind="stop_signal", container="app"),
            Moment(at_s=113.0, kind="exit", container="app", text="0"),
            Moment(at_s=113.0, kind="stop_signal", container="net"),
            Moment(at_s=114.0, kind="exit", container="net", text="137"),
        ],
        ["net", "app"],
        114.0,
    )


def texts(root: ET.Element) -> list[str]:
    return [(one.text or "") for one in root.iter(f"{SVG}text")]


def bars(root: ET.Element, kind: str) -> list[tuple[float, float]]:
    found = [one for one in root.iter(f"{SVG}rect") if one.get("class") == kind]
    return [(float(one.get("x", "")), float(one.get("x", "")) + float(one.get("width", ""))) for one in found]


def test_each_phase_is_a_bar_and_the_order_of_start_and_end_is_said() -> None:
    root = ET.fromstring(picture_as_svg(life(), "default/web"))

    assert {kind: len(bars(root, kind)) for kind in ("running", "pull", "ready", "preStop", "stopping", "budget")} == {
        "running": 2, "pull": 1, "ready": 1, "preStop": 1, "stopping": 2, "budget": 1,
    }  # fmt: skip
    assert {"start 1 · end 2", "start 2 · end 1", "net", "app", "pod", "sandbox"} <= set(texts(root))
    assert [one.get("class") for one in root.iter(f"{SVG}line") if "137" in "".join(one.itertext())] == ["bad"]


def test_a_container_is_ready_from_its_probe_to_its_signal() -> None:
    root = ET.fromstring(picture_as_svg(life(), "default/web"))
    ((begin, end),) = bars(root, "ready")
    ((_, pulled),) = bars(root, "pull")
    runs = bars(root, "running")

    assert pulled < begin < end < max(last for _, last in runs)


def test_the_legend_names_what_is_in_the_picture_and_nothing_else() -> None:
    assert "image pull" in texts(ET.fromstring(picture_as_svg(life(), "x")))

    short = draw_picture([Moment(at_s=0.0, kind="started", container="app")], ["app"], 2.0)

    assert not {"image pull", "grace", "preStop"} & set(texts(ET.fromstring(picture_as_svg(short, "x"))))


@given(st.text(), st.text(), st.sampled_from(["exit", "ready", "started", "stop_signal", "probe_failed"]))
def test_whatever_names_there_are_it_is_xml_with_them_as_text(name: str, text: str, kind: str) -> None:
    picture = draw_picture([Moment(at_s=1.0, kind=kind, container=name, text=text)], [], 2.0)
    root = ET.fromstring(picture_as_svg(picture, f"{name}<script>"))

    assert not list(root.iter(f"{SVG}script"))


@pytest.mark.parametrize("end_s", [0.0, 1e-9, 0.3, 7.0, 59.0, 3600.0, 86400.0 * 400])
def test_times_are_few_enough_to_be_read_and_within_the_picture(end_s: float) -> None:
    root = ET.fromstring(picture_as_svg(Picture(end_s=end_s), "x"))
    ticks = [one for one in root.iter(f"{SVG}line") if one.get("class") == "grid"]

    assert 1 <= len(ticks) <= 10
    assert all(0 <= float(one.get("x1", "")) <= 1000 for one in ticks)


def test_the_picture_of_the_readme_is_what_the_tool_draws() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs/pictures"
    done = CliRunner().invoke(timeline, ["--from-files", str(folder / "pod-life.yaml"), "-o", "svg"])

    assert done.output == (folder / "pod-life.svg").read_text()


class Page(HTMLParser):
    """Fails where tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        # What loads anything would need a source.
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag


def test_a_page_has_a_picture_and_a_table_for_each_pod_and_loads_nothing() -> None:
    hostile = draw_picture([Moment(at_s=1.0, kind="exit", container="<b onload=x>", text='"><script>')], [], 2.0)
    text = pictures_as_page([("default/web", life()), ("<img src=x>", hostile)])
    page = Page()
    page.feed(text)

    assert page.open == []
    assert (page.seen.count("svg"), page.seen.count("table")) == (2, 2)
    assert not {"script", "img", "b", "link"} & set(page.seen)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)


def planned(folder: Path, *flags: str) -> str:
    for name in ("web", "db"):
        (folder / f"{name}.yaml").write_text(POD.replace("NAME", name))
    done = CliRunner().invoke(timeline, ["--from-files", str(folder), *flags])
    return done.output if done.exit_code == 0 else str(done.exception)


def test_a_page_shows_all_pods_of_a_directory_and_an_svg_says_that_it_shows_one(tmp_path: Path) -> None:
    assert planned(tmp_path, "-o", "html").count("<svg") == 2
    assert planned(tmp_path, "web", "-o", "svg").count("<svg") == 1
    assert "name one of them, or say -o html" in planned(tmp_path, "-o", "svg")


@pytest.mark.skipif(not CHROMIUM, reason="set KEPD_CHROMIUM to a Chromium, such as /usr/bin/chromium")
@pytest.mark.parametrize(("scheme", "is_light"), [("1", True), ("0", False)])
def test_a_browser_draws_it_light_and_dark(tmp_path: Path, scheme: str, is_light: bool) -> None:
    """Chromium's picture has the page's colours, so the file was understood without anything beside it."""
    page = tmp_path / "page.html"
    page.write_text(pictures_as_page([("default/web", life())]))
    png = tmp_path / "shot.png"
    command = [
        CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'user'}", f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={png}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=50, cwd=tmp_path)

    assert struct.unpack(">II", png.read_bytes()[16:24]) == SIZE
    assert is_light == (brightness(png) > 128)


def brightness(png: Path) -> int:
    """Of the page's corner, which is its paper: the first pixel is the same before and after PNG's filters."""
    data, place, packed = png.read_bytes(), 8, b""
    assert (data[24], data[25]) in ((8, 2), (8, 6))

    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += 12 + length
    return zlib.decompress(packed)[1]
