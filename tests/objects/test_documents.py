# SPDX-License-Identifier: Apache-2.0
"""One object of a file changes, the rest stays byte for byte."""

import json

import pytest

from agent.config.strict_yaml import UnreadableYaml
from agent.objects.documents import ManifestObject, own_text, read_objects, replaced, without

FILE = b"""# two of a shop
apiVersion: v1
kind: Pod
metadata: {name: web}   # in front
spec: {containers: []}
---
# its way in
kind: Service
apiVersion: v1
metadata:
  name: web
spec:
  ports: [{port: 80}]
--- # the last
kind: ConfigMap
apiVersion: v1
metadata: {name: settings, namespace: shop}
data:
  "text": |
    a
     ---
    b
"""
LIST = b"""kind: List
apiVersion: v1
items:
# the first
- kind: ConfigMap
  metadata: {name: a}
  data:
    k: v   # kept
- kind: ConfigMap
  metadata: {name: b}
- kind: ConfigMap
  metadata: {name: c}
metadata: {}
"""
JSON = b"""{"kind": "List", "apiVersion": "v1", "items": [
  {"kind": "ConfigMap", "metadata": {"name": "a"}}, {"kind": "ConfigMap", "metadata": {"name": "b"}}]}"""


def named(content: bytes, name: str, kind: str = "ConfigMap") -> ManifestObject:
    return next(one for one in read_objects("f", content) if (one.kind, one.name) == (kind, name))


def test_all_objects_are_found_with_their_namespaces_and_lines() -> None:
    assert [(*one.key, one.where) for one in read_objects("f", FILE)] == [
        ("Pod", "default", "web", "f:2"),
        ("Service", "default", "web", "f:8"),
        ("ConfigMap", "shop", "settings", "f:15"),
    ]
    assert [one.name for one in read_objects("f", LIST)] == ["a", "b", "c"]
    assert [one.name for one in read_objects("f", JSON)] == ["a", "b"]


def test_a_file_loses_one_document_and_nothing_else() -> None:
    """CL-6."""
    pod, service, settings = (
        FILE.split(b"---")[0],
        FILE[FILE.index(b"---\n#") : FILE.index(b"--- #")],
        FILE[FILE.index(b"--- #") :],
    )

    assert without("f", FILE, named(FILE, "web", "Service")) == pod + settings
    assert without("f", FILE, named(FILE, "web", "Pod")) == service + settings
    assert without("f", FILE, named(FILE, "settings")) == pod + service


def test_an_item_of_a_list_goes_with_its_lines() -> None:
    assert without("f", LIST, named(LIST, "b")) == LIST.replace(b"- kind: ConfigMap\n  metadata: {name: b}\n", b"")
    assert without("f", LIST, named(LIST, "c")) == LIST.replace(b"- kind: ConfigMap\n  metadata: {name: c}\n", b"")
    assert [one.name for one in read_objects("f", without("f", JSON, named(JSON, "a")))] == ["b"]


def test_of_the_last_object_nothing_is_left() -> None:
    alone = b"# why\n---\nkind: ConfigMap\nmetadata: {name: a}\n"

    assert without("f", alone, named(alone, "a")) == b""


def test_a_list_that_loses_its_last_item_goes_with_it() -> None:
    both = FILE + b"---\nkind: List\napiVersion: v1\nitems:\n- kind: ConfigMap\n  metadata: {name: x}\n"

    assert without("f", both, named(both, "x")) == FILE


def test_an_object_is_replaced_where_it_stands() -> None:
    new = "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec: {ports: [{port: 81}]}\n"
    content = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 81}]}}
    after = replaced("f", FILE, named(FILE, "web", "Service"), new, content)

    assert after == FILE[: FILE.index(b"---\n#")] + b"---\n" + new.encode() + FILE[FILE.index(b"--- #") :]


def test_an_item_is_replaced_in_its_list() -> None:
    content = {"kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"k": "w"}}
    after = read_objects("f", replaced("f", LIST, named(LIST, "b"), "", content))

    assert [one.content.get("data") for one in after] == [{"k": "v"}, {"k": "w"}, None]


def test_the_text_of_one_object_has_its_comments() -> None:
    assert own_text(FILE, named(FILE, "web", "Service")).startswith("# its way in\nkind: Service\n")
    assert own_text(LIST, named(LIST, "a")) == "kind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n"


@pytest.mark.parametrize("content", [b"a: 1\na: 2\n", b"\xff", b"{", b"kind: A\n...\nkind: B\n"])
def test_what_cannot_be_taken_apart_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableYaml):
        read_objects("f", content)


def test_a_list_in_json_stays_json() -> None:
    """NP-14: where it is written again."""
    items = [{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}} for name in "ab"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    rest = without("f.json", text, named(text, "a"))

    assert json.loads(rest)["items"] == items[1:]
    assert without("f.json", rest, named(rest, "b")) == b""
