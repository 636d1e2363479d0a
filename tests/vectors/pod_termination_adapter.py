# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of pod-termination.json against agent.pods, in both profiles.

Owns: the translation between the JSON of the vectors and the forecast, which asks the production planner.
Never: computes anything that a case expects. Profile `kubelet` is held against `expected`, the default profile against
`better` where a case has it.
"""

from collections import defaultdict
from collections.abc import Iterator

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.order import Member, waits_for_end
from agent.pods.plan.stop_state import ContainerEnding, Trigger, begin_stop
from agent.pods.view.forecast import Assumption, ForecastRequest, Happening, HookAssumption, forecast_stop

PROFILES = ("kepd", "kubelet")
TOLERANCE_S = 0.001


def cases(document: dict) -> Iterator[tuple[str, str, dict, list]]:
    """Name, profile, input and expected events of everything in a file."""
    for case in document["cases"]:
        yield f"{case['id']}-kubelet", "kubelet", case["input"], case["expected"]
        yield f"{case['id']}-kepd", "kepd", case["input"], case.get("better", case["expected"])


def check(profile: str, given: dict, expect: list) -> None:
    """Raises AssertionError with one line per difference."""
    assert profile in PROFILES

    differences = list(_compare(_by_container(expect), _by_container(map(_event, _run(profile, given)))))

    assert not differences, "\n".join(differences)


def _run(profile: str, given: dict) -> tuple[Happening, ...]:
    listed = given["containers"]
    members = [Member(name=one["name"], kind=ContainerKind(one["kind"])) for one in listed]
    waits = waits_for_end(members)
    trigger = Trigger(given["trigger"])
    endings = [
        ContainerEnding(
            name=one["name"],
            kind=ContainerKind(one["kind"]),
            hook=(one.get("pre_stop") or {}).get("type", ""),
            waits_for=waits[one["name"]],
            is_running=one.get("state", "running") == "running",
        )
        for one in listed
        if trigger is not Trigger.FAULT or one["name"] == given["target"]
    ]
    stop = begin_stop(trigger, endings, given["grace"], 0.0, copies_kubelet=profile == "kubelet")
    requests = [ForecastRequest(one["t"], one["grace"]) for one in given.get("actions", ())]
    return forecast_stop(stop, {one["name"]: _assumption(one) for one in listed}, requests)


def _assumption(one: dict) -> Assumption:
    on_term, exits = one.get("on_term") or {}, one.get("exits_at") or {}
    return Assumption(
        hook=_hook(one["pre_stop"]) if one.get("pre_stop") else None,
        exit_after_s=on_term.get("exit_after"),
        exit_code=on_term.get("code", 0),
        exits_at_s=exits.get("t"),
        exits_with=exits.get("code", 0),
    )


def _hook(hook: dict) -> HookAssumption:
    fails = hook.get("exit_code", 0) != 0 or hook.get("refused", False)
    return HookAssumption(seconds=hook.get("seconds"), is_native=hook["type"] == "sleep", succeeds=not fails)


def _event(one: Happening) -> dict:
    shown = {"t": one.at_s, "event": one.event, "container": one.container or None}
    if one.result:
        shown["result"] = str(one.result)
    if one.code is not None:
        shown["code"] = one.code
    return shown


def _by_container(events) -> dict[str | None, list[dict]]:
    """The order between containers at one moment is free, so each has its own list."""
    found = defaultdict(list)
    for event in events:
        found[event["container"]].append(event)
    return found


def _compare(expected: dict, actual: dict) -> Iterator[str]:
    for name in sorted({*expected, *actual}, key=str):
        wanted, got = expected.get(name, []), actual.get(name, [])
        if len(wanted) != len(got) or not all(map(_is_same, wanted, got)):
            yield f"{name}: expected {_line(wanted)}; got {_line(got)}"


def _is_same(wanted: dict, got: dict) -> bool:
    is_close = abs(wanted["t"] - got["t"]) <= TOLERANCE_S
    is_result = wanted.get("result") in ("any", got.get("result"))
    return is_close and is_result and all(wanted.get(key) == got.get(key) for key in ("event", "code"))


def _line(events: list[dict]) -> str:
    return ", ".join(f"{one['t']:g} {one['event']} {one.get('result', one.get('code', ''))}".strip() for one in events)
