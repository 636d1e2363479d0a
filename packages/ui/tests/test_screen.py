# SPDX-License-Identifier: Apache-2.0
"""What the screen shows of a board, and what keys change about it."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent.images.attach.image_service import _pull_object
from agent.kinds.kube_shape import event_object
from agent.kinds.own_shape import fields_of
from agent.kinds.table import Object
from agent.model.event import Event
from agent.model.images.pull import PullClass
from agent.model.images.state import PullStage, PullState
from agent.model.pods.state import ContainerState, PodState
from agent.model.services.report import ServiceReport
from agent.pods.view.objects import pod_object
from agent.services.attach.service_proxy_service import _service_object
from agent.wire.kepd.v1 import list_pb2
from kepd_ui.board import PANELS, Board, Counted, Lost, News
from kepd_ui.cells import Line, line_width
from kepd_ui.screen import Page, Size, draw, panel_rows, room_of
from kepd_ui.view import Chosen, View, Wish, on_key

ADDED, BOOKMARK = list_pb2.CHANGE_TYPE_ADDED, list_pb2.CHANGE_TYPE_BOOKMARK
DELETED = list_pb2.CHANGE_TYPE_DELETED
WIDE = Size(160, 45)
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b2J\rover\u202egnp.exe"


def container(name: str, kind: str, state: str, *, ready: bool = False, exit_code: int = 0) -> ContainerState:
    return ContainerState(name=name, image="i", kind=kind, state=state, is_ready=ready, exit_code=exit_code)


def pod(name: str, *containers: ContainerState, **fields: str) -> Object:
    state = PodState(
        namespace="default", name=name, uid="u", phase="Running", containers=containers, created_at_s=1000.0, **fields
    )  # fmt: skip
    return pod_object(state)


def pull(key: str, image: str, stage: str, **fields: Any) -> Object:
    state = PullState(
        id=key, image=image, reference="", registry="", handler="", pull_class=PullClass.POD, stage=PullStage.QUEUED,
        **fields,
    )  # fmt: skip
    made = _pull_object(state)
    return {**made, "status": {**made["status"], "stage": stage}}


def event(key: str, reason: str, message: str, name: str, seen_s: float = 1.0) -> Object:
    return event_object(
        fields_of(
            Event(id=key, is_warning=False, reason=reason, message=message, plane="pods", object_name=name,
                  last_seen_s=seen_s)
        )
    )  # fmt: skip


def board_of(*pods: Object) -> Board:
    board = Board()
    for one in pods:
        board.take(News("pods", ADDED, one))
    board.take(News("pods", BOOKMARK))
    return board


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(one.text for one in line).rstrip() for line in lines]


def drawn(board: Board, view: View | None = None, size: Size = WIDE, page: Page | None = None) -> list[str]:
    lines = draw(board, view or View(), page, Chosen(), size, 1060.0)
    assert len(lines) == size.height
    assert all(line_width(line) <= size.width for line in lines)
    return texts(lines)


def test_containers_stand_in_the_order_of_their_start_with_how_they_are() -> None:
    one = pod(
        "web",
        container("app", "main", "Running"),
        container("net", "sidecar", "Running", ready=True),
        container("mig", "init", "Terminated"),
        container("bad", "main", "Terminated", exit_code=3),
        waits_for="readiness of app",
    )
    row = next(line for line in drawn(board_of(one)) if " web " in line)

    assert row.split() == [
        "default", "web", "1/3", "Running", "0", "60s", "net●", "›", "mig✓", "›", "app◐", "bad✗",
        "readiness", "of", "app",
    ]  # fmt: skip


def test_a_pull_has_a_bar_and_one_that_waits_says_for_what() -> None:
    board = Board()
    running = pull("1", "nginx", "downloading", total_bytes=200, done_bytes=50)
    waiting = pull("2", "redis", "queued", position=1, wait_text="one slot, and it is taken")
    for one in (running, waiting):
        board.take(News("pulls", ADDED, one))
    shown = drawn(board)

    assert any("━" * 5 + "─" * 15 + "  25%" in line for line in shown)
    assert any("waiting at 1: one slot, and it is taken" in line for line in shown)


def test_a_service_shows_connections_a_second_once_they_are_known() -> None:
    board = Board()
    service = _service_object(ServiceReport(namespace="default", name="web", type="ClusterIP"))
    board.take(News("services", ADDED, service))

    assert next(line for line in drawn(board) if " web " in line).split()[-2:] == ["-", "ok"]

    for at_s, count in ((1.0, 10), (3.0, 30)):
        board.take(Counted(at_s, {"default/web": count}))

    assert next(line for line in drawn(board) if " web " in line).split()[-2:] == ["10", "ok"]


def test_nothing_from_outside_reaches_the_terminal_unclean() -> None:
    """FX-5."""
    board = board_of(pod(HOSTILE, container(HOSTILE, "main", "Running"), waits_for=HOSTILE, reason=HOSTILE))
    board.take(News("events", ADDED, event("1", HOSTILE, HOSTILE, HOSTILE)))
    board.take(News("pulls", ADDED, pull("1", HOSTILE, HOSTILE)))
    board.take(Lost("services", HOSTILE))
    board.node.name = HOSTILE
    page = Page(HOSTILE, [HOSTILE], trouble=HOSTILE)
    shown = drawn(board) + drawn(board, View(page=Wish("describe")), page=page)
    shown += drawn(board, View(filter=HOSTILE, is_typing=True)) + drawn(board, View(note=HOSTILE))

    assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize("size", [Size(20, 6), Size(40, 12), Size(80, 24), Size(300, 100)])
@pytest.mark.parametrize("panel", PANELS)
def test_it_fits_into_any_terminal(size: Size, panel: str) -> None:
    board = board_of(*(pod(f"web-{number}") for number in range(120)))
    drawn(board, View(panel=panel), size)
    drawn(board, View(page=Wish("help")), size, Page("x", ["line"] * 90))


@pytest.mark.parametrize("height", range(6, 80))
def test_the_panels_never_need_more_lines_than_there_are(height: int) -> None:
    rows = panel_rows(View(), dict.fromkeys(PANELS, 100), height)

    assert rows["pods"] >= 1
    assert sum(count + 2 for count in rows.values() if count) + 2 <= max(height, 5)


def press(board: Board, view: View, *keys: str, page: Page | None = None) -> tuple[View, Wish | None]:
    wish: Wish | None = None
    for key in keys:
        known = Chosen().keys(board, view.panel, view.filter)
        view, wish = on_key(view, key, known, room_of(view, board, WIDE, page))
    return view, wish


def marked(board: Board, view: View) -> str:
    lines = draw(board, view, None, Chosen(), WIDE, 1060.0)
    (found,) = [line[0].text for line in lines if len(line) == 1 and line[0].style == "reverse"]
    return found.split()[1]


def test_the_chosen_object_stays_chosen_when_others_come_and_go() -> None:
    board = board_of(pod("b"), pod("c"), pod("d"))
    view, _ = press(board, View(), "j")

    assert marked(board, view) == "c"

    board.take(News("pods", ADDED, pod("a")))

    assert marked(board, view) == "c"

    board.take(News("pods", DELETED, pod("c")))

    assert marked(board, view) == "b"


def test_movement_stops_at_both_ends() -> None:
    board = board_of(*(pod(f"p{number:03}") for number in range(90)))

    assert marked(board, press(board, View(), "k", "up", "page-up")[0]) == "p000"
    assert marked(board, press(board, View(), "end", "j", "down")[0]) == "p089"
    assert marked(board, press(board, View(), "G", "home", "j")[0]) == "p001"


def test_a_filter_looks_into_all_columns_and_escape_ends_it() -> None:
    board = board_of(pod("web"), pod("db", waits_for="readiness of Postgres"))
    view, _ = press(board, View(), "/", *"postgres", "enter")
    shown = drawn(board, view)

    assert any("Pods 1 of 2" in line for line in shown)
    assert view.filter == "postgres"
    assert press(board, view, "escape")[0].filter == ""
    assert press(board, View(), "/", *"ab", "backspace", "escape")[0] == View()


def test_while_a_filter_is_typed_letters_are_letters() -> None:
    view, wish = press(board_of(pod("q")), View(), "/", "q", "d")

    assert (view.filter, wish) == ("qd", None)


@pytest.mark.parametrize(("key", "kind"), [("d", "describe"), ("l", "logs"), ("e", "explain"), ("t", "timeline")])
def test_a_letter_opens_a_page_about_the_chosen_pod_and_q_closes_it(key: str, kind: str) -> None:
    board = board_of(pod("a"), pod("b"))
    view, wish = press(board, View(), "j", key)

    assert wish == Wish(kind, "pods", "default/b")
    assert view.page == wish

    view, wish = press(board, view, "q")

    assert (view.page, wish) == (None, Wish("close"))
    assert press(board, view, "q")[1] == Wish("quit")


def test_what_there_is_no_page_of_is_said() -> None:
    board = board_of(pod("a"))
    view, wish = press(board, View(), "tab", "t")

    assert wish is None
    assert "there is no timeline of pulls" in drawn(board, view)[-1]
    assert "nothing is chosen" in drawn(board, press(board, View(), "2", "d")[0])[-1]


def test_a_log_stays_at_its_end_until_one_scrolls_and_again_from_the_end() -> None:
    board, page = board_of(pod("a")), Page("log", [f"line {number}" for number in range(200)])
    view, _ = press(board, View(), "l", page=page)

    assert "line 199" in drawn(board, view, page=page)

    view, _ = press(board, view, "k", page=page)
    page.lines = [*page.lines, "more"]

    assert "more" not in drawn(board, view, page=page)
    assert "more" in drawn(board, press(board, view, "G", page=page)[0], page=page)


def test_c_asks_for_the_log_of_the_next_container() -> None:
    view, _ = press(board_of(pod("a")), View(), "l")

    assert press(board_of(pod("a")), view, "c", "c")[1] == Wish("logs", "pods", "default/a", 2)


def test_a_watch_that_was_lost_says_so_and_keeps_what_was_known() -> None:
    board = board_of(pod("web"))
    board.take(Lost("pods", "no daemon at /run/kepd/kepd.sock"))
    shown = drawn(board)

    assert any("Pods 1  no daemon at /run/kepd/kepd.sock" in line for line in shown)
    assert any(" web " in line for line in shown)


@pytest.mark.parametrize("key", ["interrupt", "suspend", "redraw"])
def test_some_keys_mean_the_same_everywhere(key: str) -> None:
    board = board_of(pod("a"))
    wishes = {press(board, view, key)[1] for view in (View(), View(is_typing=True), View(page=Wish("help")))}

    assert wishes == {Wish("quit" if key == "interrupt" else key)}
