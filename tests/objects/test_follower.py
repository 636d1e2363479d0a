# SPDX-License-Identifier: Apache-2.0
"""One look at the directory for all planes, and one reading of each file."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.objects import decoding
from agent.objects.run.follower import PlaneObjects
from agent.objects.wanted import Wanted
from tests.objects.following import following
from tests.objects.histories import ALL, PODS, TEXT

WITHIN_S = 30.0


class HearingPlane:
    """What a plane does with what it hears."""

    def __init__(self, source: PlaneObjects) -> None:
        self._source = source
        self.heard: list[Wanted] = []

    async def run(self) -> None:
        async for wanted in self._source.news():
            self.heard.append(wanted)

    async def until(self, text: str) -> None:
        kinds = self._source.reading().kinds
        while not self.heard or not any(text.encode() in each.document for each in self.heard[-1].in_force.of(kinds)):
            await asyncio.sleep(0.01)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    counted: Counter[bytes] = Counter()
    parse = decoding.documents_or_fault

    def counting(content: bytes, path: str) -> Any:
        counted[content] += 1
        return parse(content, path)

    monkeypatch.setattr(decoding, "documents_or_fault", counting)
    return counted


@asynccontextmanager
async def planes_of(folder: Path, database: Path, text: str) -> AsyncIterator[list[HearingPlane]]:
    async with following(folder, database, *ALL, rescan_s=0.2) as sources, asyncio.TaskGroup() as group:
        planes = [HearingPlane(source) for source in sources]
        tasks = [group.create_task(plane.run()) for plane in planes]
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(plane.until(text) for plane in planes))
        yield planes
        for task in tasks:
            task.cancel()


async def test_a_file_that_changes_is_taken_apart_once_for_all_planes(tmp_path: Path, parses: Counter[bytes]) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(TEXT)
    (folder / "b.yaml").write_text(TEXT.replace("name: x", "name: y"))
    async with planes_of(folder, tmp_path / "objects.db", '"v":"1"') as planes:
        first = dict(parses)
        changed = TEXT.replace("'1'", "'2'")
        (folder / "a.yaml").write_text(changed)
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(plane.until('"v":"2"') for plane in planes))

    assert set(first.values()) == {1}
    assert parses[changed.encode()] == 1, parses
    assert len(parses) == 3


async def test_the_next_process_takes_apart_what_is_remembered_and_nothing_again(
    tmp_path: Path, parses: Counter[bytes]
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(TEXT)
    async with planes_of(folder, tmp_path / "objects.db", '"v":"1"'):
        pass
    (folder / "a.yaml").write_text("{")
    parses.clear()
    async with planes_of(folder, tmp_path / "objects.db", '"v":"1"') as planes:
        async with asyncio.timeout(WITHIN_S):
            while not all(plane.heard and not plane.heard[-1].look.is_remembered for plane in planes):
                await asyncio.sleep(0.01)
        remembered = {plane.heard[0].look.is_remembered for plane in planes}

    assert remembered == {True}
    assert parses == {TEXT.encode(): 1, b"{": 1}


async def test_a_plane_that_begins_anew_sees_what_is_there(tmp_path: Path) -> None:
    """As one that has failed and is started again; and a slow one misses what came and went."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    async with following(folder, tmp_path / "objects.db", PODS) as (source,), asyncio.timeout(WITHIN_S):
        for _ in range(2):
            async for wanted in source.news():
                assert wanted.look.files == {}
                break
