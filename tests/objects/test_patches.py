# SPDX-License-Identifier: Apache-2.0
"""Patches of objects, of all four ways that clients have."""

from typing import Any

import pytest

from agent.objects.patches import (
    BadPatch,
    applied,
    difference,
    json_patched,
    merge_patched,
    patched,
    strategic_patched,
    without_shown,
)


# The cases of RFC 7386 and RFC 6902 that say something of their own.
@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ],
)
def test_merge_patches(before: Any, patch: Any, after: Any) -> None:
    assert merge_patched(before, patch) == after


def test_the_difference_is_the_patch_that_makes_the_other() -> None:
    one, other = {"a": 1, "b": {"c": [1], "d": 2}, "e": {}}, {"a": 1, "b": {"c": [2], "f": None}, "g": {"h": 1}}

    assert difference(one, other) == {"b": {"c": [2], "d": None, "f": None}, "e": None, "g": {"h": 1}}
    assert difference(one, one) == {}
    kept = merge_patched({"b": {"c": [1], "own": 1}}, difference(one, {**one, "a": 2}))
    assert kept == {"a": 2, "b": {"c": [1], "own": 1}}


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": [1, 2], "b": 1}),
        ([{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2]}),
        ([{"op": "add", "path": "/a/-", "value": 9}], {"a": [1, 2, 9]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "replace", "path": "/a", "value": {}}], {"a": {}}),
        ([{"op": "move", "from": "/a", "path": "/x~1y"}], {"x/y": [1, 2]}),
        ([{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": [1, 2], "b": 1}),
        ([{"op": "test", "path": "/a/1", "value": 2}], {"a": [1, 2]}),
    ],
)
def test_json_patches(patch: Any, after: Any) -> None:
    before = {"a": [1, 2]}

    assert json_patched(before, patch) == after
    assert before == {"a": [1, 2]}


@pytest.mark.parametrize(
    "patch",
    [
        {"op": "add"},
        [{"op": "brew", "path": "/a"}],
        [{"op": "remove", "path": "/nosuch"}],
        [{"op": "add", "path": "/a/7", "value": 1}],
        [{"op": "test", "path": "/a", "value": 1}],
        [{"op": "replace", "path": "", "value": 1}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/b"}],
    ],
)
def test_json_patches_that_do_not_fit_are_refused(patch: Any) -> None:
    with pytest.raises(BadPatch):
        json_patched({"a": [1, 2]}, patch)


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ([{"op": "copy", "from": "", "path": f"/x{number}"} for number in range(27)], 413),
        ([{"op": "test", "path": "/a", "value": 1}] * 10_001, 413),
    ],
)
def test_a_patch_that_grows_without_end_is_refused(patch: Any, code: int) -> None:
    with pytest.raises(BadPatch) as failure:
        json_patched({"a": 1, "b": "y" * 100}, patch)

    assert failure.value.code == code


@pytest.mark.parametrize(
    "patch",
    [
        {"$retainKeys": 5}, {"$deleteFromPrimitiveList/finalizers": 5}, {"$setElementOrder/env": 5, "env": []},
        {"env": [{"name": {"a": 1}}]}, {"env": [{"name": ["a"]}]},
    ],
)  # fmt: skip
def test_a_strategic_patch_with_directions_that_mean_nothing_is_refused(patch: Any) -> None:
    with pytest.raises(BadPatch) as failure:
        strategic_patched({"env": [{"name": "a"}], "finalizers": ["b"]}, patch)

    assert failure.value.code == 400


def test_what_is_only_given_back_is_not_written() -> None:
    before = {"a": 1, "containers": [{"name": "x", "image": "i"}, {"name": "y", "image": "i"}], "list": [1]}
    shown = {**before, "b": {}, "containers": [{**each, "resources": {}} for each in before["containers"]]}  # type: ignore[attr-defined]
    x, y = shown["containers"]
    wanted = {**shown, "c": 3, "containers": [x, {**y, "image": "j"}, {"name": "z", "resources": {}}]}

    typed = {**before, "strategy": {}, "containers": [{**each, "resources": {}} for each in before["containers"]]}  # type: ignore[attr-defined]

    assert without_shown(shown, shown, before) == before
    assert without_shown(typed, before, before) == before
    assert without_shown(wanted, shown, before) == {
        **before,
        "c": 3,
        "containers": [{"name": "x", "image": "i"}, {"name": "y", "image": "j"}, {"name": "z", "resources": {}}],
    }


def test_a_variable_that_is_emptied_keeps_an_empty_value() -> None:
    before = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    patch = {"env": [{"name": "A", "value": None}, {"name": "B", "value": None, "valueFrom": {"x": "y"}}]}

    assert strategic_patched(before, patch) == {
        "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"x": "y"}}]
    }


def test_a_strategic_patch_knows_which_items_are_the_same() -> None:
    before = {
        "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y", "env": [{"name": "E", "value": "1"}]}]
    }
    patch = {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "b", "image": "z", "env": [{"name": "F", "value": "2"}]}, {"name": "a", "image": None}],
    }

    assert strategic_patched(before, patch) == {
        "containers": [
            {"name": "b", "image": "z", "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]},
            {"name": "a"},
        ]
    }
    assert (
        strategic_patched(before, {"containers": [{"name": "a", "$patch": "delete"}]})["containers"][0]["name"] == "b"
    )
    whole = strategic_patched(before, {"containers": [{"$patch": "replace"}, {"name": "c"}]})
    assert whole == {"containers": [{"name": "c"}]}
    assert strategic_patched({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}) == {
        "finalizers": ["b"]
    }
    assert strategic_patched({"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["b"], "b": 3}}) == {"a": {"b": 3}}
    assert strategic_patched({"a": 1}, {"$patch": "replace", "b": 2}) == {"b": 2}


def test_what_is_applied_again_takes_away_what_it_no_longer_says() -> None:
    first = {"data": {"a": "1", "b": "2"}, "containers": [{"name": "x", "image": "i"}, {"name": "y"}]}
    there = {
        "data": {"a": "1", "b": "2", "other": "3"},
        "containers": [{"name": "x", "image": "i", "tty": True}, {"name": "y"}, {"name": "z"}],
    }

    made = applied(there, first, {"data": {"a": "4"}, "containers": [{"name": "x", "image": "j"}]})

    assert made == {
        "data": {"a": "4", "other": "3"},
        "containers": [{"name": "x", "image": "j", "tty": True}, {"name": "z"}],
    }


def test_what_is_new_in_a_list_comes_before_what_the_patch_does_not_name() -> None:
    def names(made: dict[str, Any]) -> list[str]:
        return [each["name"] for each in made["containers"]]

    there = {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
    assert names(strategic_patched(there, {"containers": [{"name": "x"}]})) == ["x", "a", "b", "c"]
    assert names(strategic_patched(there, {"containers": [{"name": "b"}, {"name": "x"}]})) == ["a", "b", "x", "c"]
    ordered = {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c"}]}
    # Who says an order names those that are to be in it.
    assert names(strategic_patched(there, ordered)) == ["b", "c", "a"]


@pytest.mark.parametrize("how", ["merge", "strategic"])
def test_a_patch_that_is_nested_without_end_is_refused(how: str) -> None:
    patch: Any = {}
    for _ in range(5000):
        patch = {"a": patch}

    with pytest.raises(BadPatch, match="nested too deeply"):
        patched({}, patch, how)
