# SPDX-License-Identifier: Apache-2.0
"""Which pictures there are, and what each is drawn from: the same bytes whenever nothing changed."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from agent.cli.commands.pods.pods import timeline
from agent.pods.view.timeline import Bar, Mark, Picture, PictureRow
from agent.pods.view.timeline_svg import picture_as_svg
from scripts.pictures.route_svg import route_as_svg
from tests.images.queue.simulator import KEPD, Ask, Simulation

FOLDER = Path(__file__).resolve().parents[2] / "docs/pictures"


def pictures() -> Mapping[str, str]:
    return {
        "pod-life.svg": pod_life(),
        "pulls.svg": pulls(json.loads((FOLDER / "pulls.json").read_text())),
        "route.svg": route_as_svg(json.loads((FOLDER / "route.json").read_text())),
    }


def pod_life() -> str:
    """By kepctl itself."""
    done = CliRunner().invoke(timeline, ["--from-files", str(FOLDER / "pod-life.yaml"), "-o", "svg"])
    if done.exit_code:
        raise RuntimeError(done.output)
    return done.output


def pulls(case: dict[str, Any]) -> str:
    """By kepd's own queue, on a link whose time is exact."""
    asks = Simulation(case, KEPD).run().asks
    rows = tuple(_row(one) for one in sorted(asks, key=lambda one: (one.start or Fraction(0), one.index)))
    picture = Picture(end_s=max(float(one.finish or 0) for one in asks), rows=rows)
    return picture_as_svg(picture, case["title"])


def _row(ask: Ask) -> PictureRow:
    begun, started, ended = (float(one or 0) for one in (ask.t, ask.start, ask.finish))
    bars = (Bar(kind="queued", begin_s=begun, end_s=started), Bar(kind="pull", begin_s=started, end_s=ended))
    marks = (Mark(kind="asked", at_s=begun), Mark(kind="there", at_s=ended))
    return PictureRow(name=ask.id, bars=tuple(one for one in bars if one.end_s > one.begin_s), marks=marks)
