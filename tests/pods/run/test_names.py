# SPDX-License-Identifier: Apache-2.0
"""Where a decision is carried out can be read from its name."""

from pathlib import Path

PODS = Path(__file__).resolve().parents[3] / "agent/pods"
# Of the planners, `order` and the like are rules; these decide what is done next.
DEEDS = {"admit": "admitting", "start": "starting", "stop": "stopping", "probe": "probing", "resize": "resizing",
         "remove_dead": "removing_dead", "drain": "draining", "evict": "evicting"}  # fmt: skip
NOUNS = {"housekeeping"}


def modules(room: str) -> set[str]:
    return {path.stem for path in (PODS / room).glob("*.py")}


def test_each_deed_has_the_name_of_its_decision() -> None:
    """There were five conventions; this is the one of agent/pods/README.md."""
    deeds = {name for name in modules("run") | modules("run/one_pod") if name.partition("_")[0].endswith("ing")} - NOUNS

    assert deeds == set(DEEDS.values())
    assert set(DEEDS) <= modules("plan")


def test_the_table_of_rooms_names_every_module_and_no_other() -> None:
    text = (PODS / "README.md").read_text()
    rows = {row.split("`")[1].rstrip("/"): row for row in text.splitlines() if row.startswith("| `") and "/` |" in row}
    missing = {
        (room, name)
        for room in (
            "manifest",
            "plan",
            "plan/scarcity",
            "runtime",
            "view",
            "run",
            "run/one_pod",
            "run/handlers",
            "run/disk",
            "run/checkpoints",
        )
        for name in modules(room) - {"__init__"}
        if f"`{name}`" not in rows[room]
    }
    named = {word for row in rows.values() for word in row.split("`")[1::2] if "/" not in word}
    known = {name for room in rows for name in modules(room)}

    assert missing == set()
    assert named - known == set()
