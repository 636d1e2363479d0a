# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of pull-queue.json against agent.images and compares what comes out, in all three modes.

Owns: the translation between the JSON of the vectors and the simulator, which asks the production queue.
Never: computes anything that a case expects. The files keep their cases in two lists with `expected` per mode, so
`cases` unfolds them for the runner: one case per mode, and one per back-off sequence.
"""

from collections.abc import Iterator

from agent.images.queue.backoff import BackoffTable
from tests.images.queue.simulator import MODES, Simulation, exact

KINDS = frozenset({"backoff", *MODES})
TOLERANCE_S = 0.001


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    """Name, kind, input and expected outcome of everything in a file."""
    for case in document.get("backoff_cases", ()):
        yield case["id"], "backoff", {"ops": case["ops"]}, {"results": case["expect"]}
    for case in document.get("cases", ()):
        given = {name: value for name, value in case.items() if name not in ("id", "title", "note", "expected")}
        for mode, expect in case["expected"].items():
            yield f"{case['id']}-{mode}", mode, given, expect


def check(kind: str, given: dict, expect: dict) -> None:
    """Raises AssertionError with one line per difference."""
    actual = _backoff(given) if kind == "backoff" else _queue(kind, given)
    differences = list(_compare(expect, actual, "expect"))

    assert not differences, "\n".join(differences)


def _backoff(given: dict) -> dict:
    table = BackoffTable()
    results = []
    for moment, operation, key in given["ops"]:
        now_s = exact(moment)
        match operation:
            case "fail":
                results.append(table.fail(key, now_s))
            case "check":
                results.append(table.is_waiting(key, now_s))
            case "ok":
                table.forget_expired(now_s)
                results.append(None)
    return {"results": results}


def _queue(mode: str, given: dict) -> dict:
    outcome = Simulation(given, mode).run()
    over = [ask for ask in outcome.asks if ask.is_over]
    return {
        "start_order": outcome.start_order,
        "finish_order": [ask.id for ask in sorted(over, key=lambda one: (one.finish, one.index))],
        "makespan": float(max((ask.finish for ask in over), default=0)),
        "requests": {ask.id: _request(ask) for ask in outcome.asks},
    }


def _request(ask) -> dict:
    shown = {
        "start": None if ask.start is None else float(ask.start),
        "finish": None if ask.finish is None else float(ask.finish),
        "status": ask.status or None,
    }
    if ask.joined:
        shown["joined"] = ask.joined
    if ask.is_pod_deleted:
        shown["pod_deleted"] = True
    return shown


def _compare(expected: object, actual: object, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            if key not in actual or key not in expected:
                side = "missing" if key not in actual else "unexpected"
                yield f"{path}.{key}: {side}: {(expected | actual)[key]!r}"
            else:
                yield from _compare(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for position, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from _compare(left, right, f"{path}[{position}]")
    elif _is_number(expected) and _is_number(actual):
        if abs(expected - actual) > TOLERANCE_S:
            yield f"{path}: expected {expected!r}, got {actual!r}"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: expected {expected!r}, got {actual!r}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
