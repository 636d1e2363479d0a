# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from agent.kit.event_ring import EventRing
from agent.model.event import Event


def event(reason: str, message: str = "m") -> Event:
    return Event(id="", is_warning=False, reason=reason, message=message, plane="images", object_name="web")


def shown(ring: EventRing) -> list[tuple[str, int]]:
    return [(one.reason, one.count) for one in sorted(ring.events.items.values(), key=lambda one: one.last_seen_s)]


def test_what_repeats_is_counted_and_the_oldest_goes_first(tmp_path: Path) -> None:
    """EVT-01."""
    times = iter(range(100))
    ring = EventRing(tmp_path, 2, lambda: float(next(times)))
    for reason in ("Pulling", "Pulled", "Pulling", "Failed"):
        ring.tell(event(reason))

    assert shown(ring) == [("Pulling", 2), ("Failed", 1)]


def test_what_a_terminal_obeys_does_not_get_in(tmp_path: Path) -> None:
    """FX-5: an error of a registry went raw into events, their file and what kepctl shows."""
    ring = EventRing(tmp_path, 10, lambda: 5.0)
    hostile = "pull\x1b]0;owned\x07\rfailed\u202e"
    ring.tell(Event(id="", is_warning=True, reason="Failed", message=hostile, plane="images", object_name=hostile))
    (kept,) = ring.events.items.values()

    assert kept.message == kept.object_name == "pull?]0;owned??failed?"


def test_events_outlive_the_process_and_a_damaged_file_is_an_empty_one(tmp_path: Path) -> None:
    ring = EventRing(tmp_path, 10, lambda: 5.0)
    ring.tell(event("Pulling"))
    ring.save()
    again = EventRing(tmp_path, 10, lambda: 6.0)
    again.load()
    again.tell(event("Pulling"))
    assert shown(again) == [("Pulling", 2)]
    assert (tmp_path / "events.ring").stat().st_mode & 0o077 == 0

    (tmp_path / "events.ring").write_bytes(b"[{")
    third = EventRing(tmp_path, 10, lambda: 7.0)
    third.load()
    assert shown(third) == []


def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    ring = EventRing(tmp_path, 10, lambda: 5.0)
    ring.save()
    assert not (tmp_path / "events.ring").exists()


def test_one_object_cannot_drive_out_what_others_have_to_say(tmp_path: Path) -> None:
    """STS-06: 25 new events at once, then one in five minutes; what repeats is only counted."""
    now = [0.0]
    ring = EventRing(tmp_path, 1000, lambda: now[0])
    for number in range(40):
        ring.tell(event("Unhealthy", f"answer {number}"))
    ring.tell(event("Unhealthy", "answer 3"))
    assert len(ring.events.items) == 25
    assert [one.count for one in ring.events.items.values() if one.message == "answer 3"] == [2]
    now[0] = 300.0
    ring.tell(event("Unhealthy", "five minutes later"))
    ring.tell(event("Unhealthy", "and at once again"))
    assert len(ring.events.items) == 26
    ring.tell(Event(id="", is_warning=False, reason="Pulled", message="m", plane="images", object_name="db"))
    for number in range(30):
        ring.tell(Event(id="", is_warning=True, reason="FailedValidation", message=str(number), plane="pods"))

    assert len(ring.events.items) == 57
