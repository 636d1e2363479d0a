# SPDX-License-Identifier: Apache-2.0
"""Many who write one object at the same time, by patches, by whole objects and by hand: what was acknowledged is there.

`KEPD_WRITES` is how often each writes; `python -m packages.door.tests.test_writers` repeats it all twenty times.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.objects.run import writer
from packages.door.tests.door_process import DoorProcess, config_map
from tests.ports import take_port

MAPS = "/api/v1/namespaces/default/configmaps"
RACE = f"{MAPS}/race"
WRITES = int(os.environ.get("KEPD_WRITES", "12"))
WRITERS = 8


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorProcess]:
    with DoorProcess(tmp_path_factory.mktemp("d"), (take_port(), take_port())) as opened:
        yield opened


def merged(door: DoorProcess, key: str) -> bool:
    return door.ask("PATCH", RACE, {"data": {key: "v"}}, kind="application/merge-patch+json")[0] == 200


def merged_by_strategy(door: DoorProcess, key: str) -> bool:
    kind = "application/strategic-merge-patch+json"
    return door.ask("PATCH", RACE, {"data": {key: "v"}}, kind=kind)[0] == 200


def added(door: DoorProcess, key: str) -> bool:
    patch = [{"op": "add", "path": f"/data/{key}", "value": "v"}]
    return door.ask("PATCH", RACE, patch, kind="application/json-patch+json")[0] == 200


def applied(door: DoorProcess, key: str) -> bool:
    path = f"{RACE}?fieldManager={key}&force=true"
    return door.ask("PATCH", path, config_map("race", **{key: "v"}), kind="application/apply-patch+yaml")[0] == 200


def put(door: DoorProcess, key: str) -> bool:
    """As a controller does it: read, change, write, again after a conflict."""
    while True:
        made = door.ask("GET", RACE)[1]
        status, said = door.ask("PUT", RACE, {**made, "data": {**made["data"], key: "v"}})
        if status != 409:
            return status == 200
        assert said["reason"] == "Conflict"


def edited(door: DoorProcess, key: str) -> bool:
    """By hand, with an editor that sees that the file changed under it."""
    place: Path = door.kepd.manifests / "kepctl-ConfigMap.default.race.yaml"
    while True:
        text = place.read_bytes()
        try:
            writer.write_whole(place, text.replace(b"data:\n", f"data:\n  {key}: by-hand\n".encode(), 1), 0o640, text)
        except writer.Edited:
            continue
        return True


def race(door: DoorProcess, writes: int) -> set[str]:
    """The keys that were acknowledged and are not there."""
    door.ask("DELETE", RACE)
    assert door.ask("POST", MAPS, config_map("race", first="x"))[0] == 201
    ways: list[Callable[[DoorProcess, str], bool]] = [merged, merged_by_strategy, added, put, put, merged, added, put]

    def write(number: int) -> set[str]:
        keys = [f"w{number}-{turn}" for turn in range(writes)]
        return {key for key in keys if ways[number](door, key)}

    def edit() -> set[str]:
        return {key for turn in range(max(writes // 4, 1)) if edited(door, key := f"hand-{turn}")}

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(WRITERS + 1) as pool:
        patch.setattr(writer, "draft_of", lambda file: file.with_name(".by-hand"))
        done = [pool.submit(write, number) for number in range(WRITERS)]
        acknowledged = set().union(*(each.result() for each in (*done, pool.submit(edit))))
    assert len(acknowledged) >= WRITERS * writes
    return acknowledged - door.ask("GET", RACE)[1]["data"].keys()


def test_what_was_acknowledged_is_there(door: DoorProcess) -> None:
    assert race(door, WRITES) == set()


def test_what_several_apply_is_there(door: DoorProcess) -> None:
    door.ask("DELETE", RACE)
    with ThreadPoolExecutor(WRITERS) as pool:
        done = list(pool.map(lambda number: applied(door, f"m{number}"), range(WRITERS)))
    first = door.ask("GET", RACE)[1]["data"]
    applied(door, "m0")
    path = f"{RACE}?fieldManager=m0&force=true"
    door.ask("PATCH", path, config_map("race", other="v"), kind="application/apply-patch+yaml")

    assert (done, sorted(first)) == ([True] * WRITERS, [f"m{number}" for number in range(WRITERS)])
    assert sorted(door.ask("GET", RACE)[1]["data"]) == sorted({*first, "other"} - {"m0"})


def test_one_of_those_who_write_the_same_version_wins(door: DoorProcess) -> None:
    door.ask("DELETE", RACE)
    door.ask("POST", MAPS, config_map("race", first="x"))
    for turn in range(5):
        made = door.ask("GET", RACE)[1]

        def write(number: int, turn: int = turn, made: dict[str, object] = made) -> int:
            return door.ask("PUT", RACE, {**made, "data": {f"{turn}.{number}": "v"}})[0]

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(write, range(4))) == [200, 409, 409, 409]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name, DoorProcess(Path(name), (take_port(), take_port())) as opened:
        for turn in range(20):
            print(turn, "lost:", sorted(race(opened, 200)), flush=True)
