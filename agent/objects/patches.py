# SPDX-License-Identifier: Apache-2.0
"""Patches of objects: JSON Patch (RFC 6902), merge patch (RFC 7386), Kubernetes' strategic merge, and what an applied
object means for one that was applied before. Values in, values out; what was given is never changed."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

Object = dict[str, Any]


class BadPatch(Exception):
    """`code` is the status that an API server answers with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


# Lists whose items are the same object where this field is the same; other lists are replaced as one.
KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",), "initContainers": ("name",), "ephemeralContainers": ("name",), "volumes": ("name",),
    "env": ("name",), "imagePullSecrets": ("name",), "resourceClaims": ("name",), "schedulingGates": ("name",),
    "volumeMounts": ("mountPath",), "volumeDevices": ("devicePath",), "hostAliases": ("ip",),
    "ports": ("containerPort", "port"), "topologySpreadConstraints": ("topologyKey",), "conditions": ("type",),
    "ownerReferences": ("uid",),
}  # fmt: skip
# Clients with types of their own write them where there is nothing.
NEVER_ABSENT = ("resources", "strategy", "updateStrategy")
# Lists of words that are one set.
SETS = ("finalizers",)
ORDER, GONE, KEPT = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"
# As an API server has it.
MOST_OPERATIONS = 10_000
# Of an object, by operations that copy.
MOST_COPIED_BYTES = 3 << 20


def merge_patched(current: Any, patch: Any) -> Any:  # noqa: ANN401  # JSON
    if not isinstance(patch, dict):
        return deepcopy(patch)
    made = dict(current) if isinstance(current, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patched(made.get(name), value)
    return made


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The merge patch that makes one of the other."""
    made: Object = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                made[name] = inner
        elif value != old or name not in before:
            made[name] = value
    return made


def without_shown(wanted: Any, shown: Any, before: Any, name: str = "") -> Any:  # noqa: ANN401  # JSON
    """`wanted` where it is not as it was shown; elsewhere what was there `before`, which may be nothing."""
    if isinstance(wanted, dict) and isinstance(shown, dict) and isinstance(before, dict):
        made = {}
        for field, value in wanted.items():
            if value == {} and field in NEVER_ABSENT and field not in before:
                continue
            if field not in shown or value != shown[field]:
                made[field] = without_shown(value, shown.get(field), before.get(field), field)
            elif field in before:
                made[field] = before[field]
        return made
    if not (isinstance(wanted, list) and isinstance(shown, list) and isinstance(before, list)):
        return wanted
    if not (key := _key_of(name, wanted)):
        return wanted
    seen, there = ({one.get(key): one for one in part if isinstance(one, dict)} for part in (shown, before))
    return [without_shown(one, seen.get(one[key]), there.get(one[key])) for one in wanted]


def patched(current: Object, patch: Any, how: str) -> Object:  # noqa: ANN401  # JSON
    """`how`: json, merge or strategic. Raises BadPatch."""
    if how != "json" and not isinstance(patch, dict):
        raise BadPatch(400, f"a {how} patch is an object")
    work = {"json": json_patched, "merge": merge_patched, "strategic": strategic_patched}[how]
    try:
        made: Object = work(current, patch)
    except RecursionError:
        raise BadPatch(400, "the patch is nested too deeply; expected what an object may have") from None
    return made


def strategic_patched(current: Object, patch: Object) -> Object:
    if patch.get("$patch") == "replace":
        return {name: deepcopy(value) for name, value in patch.items() if name != "$patch"}
    made = dict(current)
    if (kept := _list_of(patch, KEPT)) is not None:
        words = _words(kept)
        made = {name: value for name, value in made.items() if _word(name) in words}
    for name, value in patch.items():
        if name.startswith(GONE):
            field, gone = name.removeprefix(GONE), _words(_list_of(patch, name) or ())
            made[field] = [value for value in _list_of(made, field) or () if _word(value) not in gone]
        elif name.startswith("$"):
            continue
        elif value is None and name == "value" and patch.keys() == {"name", "value"}:
            # A variable that is emptied; without any value it would look like one whose value was left out.
            made[name] = ""
        elif value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            before = made.get(name)
            if value.get("$patch") == "delete":
                made.pop(name, None)
            else:
                made[name] = strategic_patched(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list):
            made[name] = _list_patched(name, _list_of(made, name) or [], value, _list_of(patch, ORDER + name))
        else:
            made[name] = value
    return made


def _list_of(made: Object, name: str) -> list[Any] | None:
    value = made.get(name)
    if value is not None and not isinstance(value, list):
        raise BadPatch(400, f"{name} is {str(value)[:40]!r}; expected a list")
    return value


def _word(value: Any) -> bytes:  # noqa: ANN401  # JSON
    """What two equal values have in common, so that long lists are compared in one pass."""
    return msgspec.json.encode(value, order="deterministic")


def _words(values: Sequence[Any]) -> set[bytes]:
    return set(map(_word, values))


def _key_of(name: str, items: Sequence[Any]) -> str:
    """Empty: the list is one value."""
    if not all(isinstance(one, dict) for one in items):
        return ""
    for key in KEYS.get(name, ()):
        if items and all(key in one for one in items):
            if any(isinstance(one[key], dict | list) for one in items):
                raise BadPatch(400, f"{key} of {name} is a map or a list; expected a word or a number")
            return key
    return ""


def _list_patched(name: str, current: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    if name in SETS:
        known = _words(current)
        return [*current, *(value for value in patch if _word(value) not in known)]
    named = [one for one in patch if not (isinstance(one, dict) and set(one) == {"$patch"})]
    key = _key_of(name, named) if named else ""
    if len(named) != len(patch) and patch and {"$patch": "replace"} in patch:
        return deepcopy(named)
    if not key:
        return deepcopy(patch)
    made = {one.get(key): one for one in current if isinstance(one, dict) and key in one}
    for one in named:
        if one.get("$patch") == "delete":
            made.pop(one[key], None)
        else:
            made[one[key]] = strategic_patched(made.get(one[key], {}), one)
    wanted = [one[key] for one in order or named if isinstance(one, dict) and key in one]
    before = [one[key] for one in current if isinstance(one, dict) and key in one]
    return [made[value] for value in _placed(made, before, wanted)]


def _placed(made: Iterable[Any], before: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """What the patch names keeps its own order, and so does the rest; what is new comes before what it does not name,
    as an API server has it."""
    there, places = set(made), {value: place for place, value in enumerate(before)}
    named = deque(value for value in dict.fromkeys(wanted) if value in there)
    first = set(named)
    others = deque(value for value in made if value not in first)
    found: list[Any] = []
    while named and others:
        left, right = places.get(others[0]), places.get(named[0])
        is_before = left is not None and right is not None and left < right
        found.append(others.popleft() if is_before else named.popleft())
    return [*found, *others, *named]


def applied(current: Object, before: Object, wanted: Object) -> Object:
    """`wanted` over what there is, without what was applied before and is not wanted any more."""
    made = dict(current)
    for name in before.keys() - wanted.keys():
        rest = _without(made.get(name), before[name])
        if rest is None:
            made.pop(name, None)
        else:
            made[name] = rest
    for name, value in wanted.items():
        old, last = made.get(name), before.get(name)
        if isinstance(value, dict):
            made[name] = applied(old if isinstance(old, dict) else {}, last if isinstance(last, dict) else {}, value)
        elif isinstance(value, list):
            made[name] = _list_applied(name, old, last, value)
        else:
            made[name] = value
    return made


def _without(current: Any, before: Any) -> Any:  # noqa: ANN401  # JSON
    """What others wrote of it; None where nothing is left."""
    if not isinstance(current, dict) or not isinstance(before, dict):
        return None
    return applied(current, before, {}) or None


def _list_applied(name: str, current: Any, before: Any, wanted: list[Any]) -> list[Any]:  # noqa: ANN401  # JSON
    key = _key_of(name, wanted)
    if not key or not isinstance(current, list):
        return deepcopy(wanted)
    there = {one.get(key): one for one in current if isinstance(one, dict)}
    last = {one.get(key): one for one in before or () if isinstance(one, dict)} if isinstance(before, list) else {}
    names = [one[key] for one in wanted]
    others = [one for value, one in there.items() if value not in names and value not in last]
    return [applied(there.get(one[key], {}), last.get(one[key], {}), one) for one in wanted] + others


def json_patched(current: Object, operations: Any) -> Object:  # noqa: ANN401  # JSON
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise BadPatch(400, "a JSON patch is a list of operations")
    if len(operations) > MOST_OPERATIONS:
        raise BadPatch(413, f"the patch has {len(operations)} operations; at most {MOST_OPERATIONS} are carried out")
    made, copied = deepcopy(current), 0
    for number, one in enumerate(operations):
        work = _OPERATIONS.get(str(one.get("op")))
        if work is None:
            raise BadPatch(
                400, f"operation {number} is {str(one.get('op'))[:20]!r}; expected one of {', '.join(_OPERATIONS)}"
            )
        try:
            if work is _copy:
                copied += len(msgspec.json.encode(_found(made, _steps(one["from"]))))
                if copied > MOST_COPIED_BYTES:
                    raise BadPatch(
                        413, f"operation {number} and those before it copy more than {MOST_COPIED_BYTES} bytes"
                    )
            made = work(made, one)
        except (KeyError, IndexError, ValueError, TypeError, RecursionError) as error:
            text = f"operation {number}, {one['op']} at {str(one.get('path'))[:200]!r}, does not fit the object"
            raise BadPatch(422, text) from error
    if not isinstance(made, dict):
        raise BadPatch(422, "the patch leaves no object")
    return made


def _steps(path: Any) -> list[str]:  # noqa: ANN401  # JSON
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise ValueError(path)
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _found(made: Any, steps: Sequence[str]) -> Any:  # noqa: ANN401  # JSON
    for step in steps:
        made = made[int(step)] if isinstance(made, list) else made[step]
    return made


def _put(made: Any, steps: Sequence[str], value: Any) -> Any:  # noqa: ANN401  # JSON
    if not steps:
        return value
    place = _found(made, steps[:-1])
    if isinstance(place, list):
        number = len(place) if steps[-1] == "-" else int(steps[-1])
        if not 0 <= number <= len(place):
            raise IndexError(number)
        place.insert(number, value)
    else:
        place[steps[-1]] = value
    return made


def _taken(made: Any, steps: Sequence[str]) -> Any:  # noqa: ANN401  # JSON
    place = _found(made, steps[:-1])
    return place.pop(int(steps[-1])) if isinstance(place, list) else place.pop(steps[-1])


def _add(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    return _put(made, _steps(one["path"]), deepcopy(one["value"]))


def _remove(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    _taken(made, _steps(one["path"]))
    return made


def _replace(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    steps = _steps(one["path"])
    if steps:
        _taken(made, steps)
    return _put(made, steps, deepcopy(one["value"]))


def _move(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    return _put(made, _steps(one["path"]), _taken(made, _steps(one["from"])))


def _copy(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    return _put(made, _steps(one["path"]), deepcopy(_found(made, _steps(one["from"]))))


def _test(made: Any, one: Object) -> Any:  # noqa: ANN401  # JSON
    if _found(made, _steps(one["path"])) != one["value"]:
        raise ValueError(one["path"])
    return made


_OPERATIONS: Mapping[str, Callable[[Any, Object], Any]] = {
    "add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test,
}  # fmt: skip
