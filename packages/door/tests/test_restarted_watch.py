# SPDX-License-Identifier: Apache-2.0
"""A watch goes on where it was when kepd has begun anew, and nobody has to list again."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.objects.feed import ObjectFeed, Versions
from kepd_door.run.kinds.lasting import AUTHORITY
from packages.door.tests.door_process import DoorProcess, config_map
from tests.ports import take_port

MAPS = "/api/v1/namespaces/default/configmaps"


def next_change(door: DoorProcess, since: str) -> tuple[str, Any]:
    with (
        closing(door.open()) as opened,
        closing(door.watch(opened, f"{MAPS}?watch=1&resourceVersion={since}")) as lines,
    ):
        change = json.loads(lines.readline())
    return change["type"], change["object"]


def test_who_watches_goes_on_after_a_restart_and_lists_again_after_a_kill(short_path: Path) -> None:
    ports = take_port(), take_port()
    with DoorProcess(short_path, ports) as door:
        for name in ("kept", "goes"):
            door.ask("POST", MAPS, config_map(name, a="1"))
        _, first = door.ask("GET", MAPS)
        since = first["metadata"]["resourceVersion"]
        versions = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in first["items"]}
        door.ask("DELETE", f"{MAPS}/goes")
        door.ask("GET", MAPS)
    with DoorProcess(short_path, ports) as door:
        _, again = door.ask("GET", MAPS)
        kind, gone = next_change(door, since)
        door.ask("PATCH", f"{MAPS}/kept", {"data": {"a": "2"}}, kind="application/merge-patch+json")
        later, changed = next_change(door, gone["metadata"]["resourceVersion"])
        door.kepd.process.kill()  # type: ignore[union-attr]
        door.kepd.process.wait(60)  # type: ignore[union-attr]
    with DoorProcess(short_path, ports) as door:
        door.ask("GET", MAPS)
        lost, status = next_change(door, changed["metadata"]["resourceVersion"])

    seen = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in again["items"]}
    assert seen == {"kept": versions["kept"], AUTHORITY: versions[AUTHORITY]}
    assert (kind, gone["metadata"]["name"]) == ("DELETED", "goes")
    assert (later, changed["data"]) == ("MODIFIED", {"a": "2"})
    assert (lost, status["code"]) == ("ERROR", 410)


def test_what_is_resumed_is_as_it_was() -> None:
    def named(name: str, **more: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "n"}, **more}

    before = ObjectFeed(Versions(100))
    before.put(("n", "a"), named("a", words=("x", "y")))
    before.put(("n", "b"), named("b"))
    before.put(("n", "b"), None)
    after = ObjectFeed(Versions(1000))
    after.resume(before.to_remember())
    after.replace({("n", "a"): named("a", words=("x", "y")), ("n", "c"): named("c")})

    assert [change.version for change in after.after(100)] == [101, 102, 103, 1001]
    assert after.entries["n", "a"].version == 101
