# SPDX-License-Identifier: Apache-2.0
"""The pictures of the README are what the tools draw today."""

import json
import xml.etree.ElementTree as ET

import pytest

from scripts.pictures.drawn import FOLDER, pictures
from scripts.pictures.route_svg import route_as_svg
from scripts.pictures.told_route import tell
from tests.host.process import ROOT

SVG = "{http://www.w3.org/2000/svg}"
WORDS = {
    "pod-life.svg": ("migrate", "proxy", "app"),
    "pulls.svg": ("waits in the queue", "network 25 MB critical"),
    "route.svg": ("10.85.0.11:8080", "its hint names this zone", "masqueraded"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_picture_is_what_the_tools_draw(name: str) -> None:
    text = pictures()[name]
    words = " ".join(ET.fromstring(text).itertext())

    assert text == (FOLDER / name).read_text(), "run python -m scripts.pictures"
    assert [one for one in WORDS[name] if one not in words] == []
    assert f"(docs/pictures/{name})" in (ROOT / "README.md").read_text()
    assert "prefers-color-scheme:dark" in text


def test_every_picture_is_checked() -> None:
    assert {*pictures()} == {*WORDS} == {path.name for path in FOLDER.glob("*.svg")}


@pytest.mark.node
def test_the_route_is_what_kepctl_says_of_it() -> None:
    """On rules in a kernel."""
    assert json.dumps(tell(), indent=1) + "\n" == (FOLDER / "route.json").read_text(), "run python -m scripts.pictures"


def test_words_of_a_route_are_text_and_stay_within_their_boxes() -> None:
    told = json.loads((FOLDER / "route.json").read_text())
    told["route"]["endpoints"][0]["reason"] = "<script>x</script> & " + "word " * 6
    root = ET.fromstring(route_as_svg(told))
    bottom = float(root.get("height", "0"))

    assert not list(root.iter(f"{SVG}script"))
    assert all(float(one.get("y", "0")) < bottom for one in root.iter(f"{SVG}text"))
