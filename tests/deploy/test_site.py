# SPDX-License-Identifier: Apache-2.0
"""The site of the pages, really made."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from agent import __version__
from tests.host.process import ROOT

pytestmark = [pytest.mark.image, pytest.mark.timeout(300)]
LOADED = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"')


def test_each_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "0.8.10").mkdir()
    done = subprocess.run([str(ROOT / "scripts/site"), str(tmp_path)], capture_output=True, text=True, check=False)
    pages = [path.read_text() for path in (tmp_path / __version__).rglob("*.html")]
    versions = json.loads((tmp_path / "versions.json").read_text())

    assert done.returncode == 0, done.stdout + done.stderr
    assert [one["version"] for one in versions] == [__version__, "0.8.10"]
    assert f"{__version__}/index.html" in (tmp_path / "index.html").read_text()
    assert [found for page in pages for found in LOADED.findall(page) if "kepd.dev" not in found] == []
    assert "search_index.json" in {path.name for path in (tmp_path / __version__ / "search").iterdir()}
