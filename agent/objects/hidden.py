# SPDX-License-Identifier: Apache-2.0
"""What of an object who may only read sees, and what a text that was shown so must not do to the object. Pure.

Values of Secrets and of variables are left out. What was left out is marked by an annotation, and a text with that mark
is never written: it would empty the values that it does not show.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from agent.kinds.parts import items, part
from agent.kinds.registry import CARRIED_OUT, WITH_PODS
from agent.model.finding import Finding
from agent.model.generation import generation_of
from agent.model.nodes.manifest_report import ListedObject
from agent.model.pods.shown_spec import CONTAINERS, LAST_APPLIED, LEFT_OUT, without_copy
from agent.model.pods.source_folder import SourceFolder
from agent.model.pods.wall_clock import stamp
from agent.objects.decoding import Content

Key = tuple[str, str, str]
# In which `env` is a word of an author.
WORDS = ("labels", "matchLabels", "nodeSelector")
CREATION, REVISION = "creationTimestamp", "deployment.kubernetes.io/revision"
VALUES = ("data", "stringData", "binaryData")
# All of a Secret that who may read sees, beside the names of its keys: a slip in another name must not show a value.
OPEN_FIELDS = ("apiVersion", "kind", "metadata", "type", "immutable")
# Where an object has what a pod is made of.
POD_SPECS = frozenset(kind.pod_path for kind in WITH_PODS.values())


def shown(key: Key, content: Content, source: str, version: str) -> ListedObject:
    """For callers who may only read."""
    kind = key[0]
    is_marked, content = hides(kind, content), _with_generation(kind, content)
    if kind == "Secret":
        open_fields = {field: value for field, value in plain_copy(content).items() if field in OPEN_FIELDS}
        content = {**open_fields, "data": dict.fromkeys(_keys(content), "")}
    elif kind in WITH_PODS:
        content = {name: _bare(inner) for name, inner in content.items()}
    elif kind in CARRIED_OUT:
        content = plain_copy(content)
    if is_marked:
        # Another value is another version, which a watch has to tell though it does not show the value.
        content = with_annotation(content, LEFT_OUT, version)
    return _listed(key, content, source, version)


def whole(key: Key, content: Content, source: str, version: str) -> ListedObject:
    return _listed(key, _with_generation(key[0], content), source, version)


def _listed(key: Key, content: Content, source: str, version: str) -> ListedObject:
    kind, namespace, name = key
    encoded = msgspec.json.encode(content)
    return ListedObject(kind=kind, namespace=namespace, name=name, content=encoded, source=source, version=version)


def _with_generation(kind: str, content: Content) -> Content:
    """Of the whole: its status is about all of it, also about values that are left out."""
    if kind not in CARRIED_OUT:
        return content
    return {**content, "metadata": {**part(content, "metadata"), "generation": generation_of(content)}}


def hides(kind: str, content: Content) -> bool:
    """Whether who may only read sees less than there is."""
    if kind == "Secret":
        return any(part(content, name) for name in VALUES)
    return kind in WITH_PODS and _bare(content) != _bare(content, variables=False)


def losses(kind: str, given: Content, there: Content | None, where: str) -> Iterator[Finding]:
    """What a text would take away only because it was shown without it. `there` is what the object says now."""
    marked = f"metadata.annotations[{LEFT_OUT}]"
    way_out = "change the object with `kepctl edit`, or read it with a kubeconfig of level operate"
    places = [part(given, "metadata"), *(part(spec, "metadata") for spec in _templates(given))]
    if any(LEFT_OUT in part(place, "annotations") for place in places):
        text = f"this text was shown without the values of the object, and writing it would empty them; {way_out}"
        yield Finding(where, marked, text)
    elif there is not None:
        lost = _lost_data(given, there) if kind == "Secret" else _lost_variables(given, there)
        for path in lost:
            text = f"has no value here, but the object has one, which would be lost; {way_out}, or write {_empty(path)}"
            yield Finding(where, path, text)


def _empty(path: str) -> str:
    return 'it into stringData as ""' if path.startswith("data") else 'value: ""'


def _lost_data(given: Content, there: Content) -> Iterator[str]:
    known = {key: value for name in VALUES for key, value in part(there, name).items()}
    texts = part(given, "stringData")
    for key, value in part(given, "data").items():
        if value in ("", None) and known.get(key) and key not in texts:
            yield f"data[{key}]"


def _lost_variables(given: Content, there: Content) -> Iterator[str]:
    known = {
        (container, str(variable.get("name")))
        for _, container, variable in _variables(there)
        if variable.get("value") not in ("", None)
    }
    for path, container, variable in _variables(given):
        if variable.keys() == {"name"} and (container, str(variable["name"])) in known:
            yield path


def _variables(content: Content) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    for way, spec in _pod_specs(content):
        for name in CONTAINERS:
            for number, container in enumerate(items(spec, name)):
                for place, variable in enumerate(items(container, "env")):
                    yield f"{way}.{name}[{number}].env[{place}]", str(container.get("name")), variable


def _pod_specs(content: Content) -> Iterator[tuple[str, Content]]:
    for way in POD_SPECS:
        spec = part(content, *way)
        if "containers" in spec:
            yield ".".join(way), spec


def _templates(content: Content) -> Iterator[Content]:
    for way in (("template",), ("jobTemplate",), ("jobTemplate", "spec", "template")):
        yield part(content, "spec", *way)


def _bare(value: object, *, variables: bool = True) -> object:
    """Without kubectl's copy of it all, and without the values of variables wherever a slip has put them."""
    if isinstance(value, list):
        return [_bare(each, variables=variables) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, object] = {}
    for name, inner in value.items():
        if name == "annotations" and isinstance(inner, dict):
            made[name] = without_copy(inner)
        elif name in WORDS:
            made[name] = inner
        elif variables and str(name).casefold() == "env":
            made[name] = _names_alone(inner)
        else:
            made[name] = _bare(inner, variables=variables)
    return made


def _names_alone(variables: object) -> object:
    if isinstance(variables, dict):
        return dict.fromkeys(variables, "")
    return [
        {name: inner for name, inner in each.items() if name in ("name", "valueFrom") or inner in ("", None)}
        for each in (variables if isinstance(variables, list) else ())
        if isinstance(each, dict)
    ]


def plain_copy(content: Content) -> Content:
    """kubectl keeps the whole object, values too, in an annotation; without that."""
    annotations = part(content, "metadata").get("annotations")
    if not isinstance(annotations, dict) or LAST_APPLIED not in annotations:
        return content
    return {**content, "metadata": {**part(content, "metadata"), "annotations": without_copy(annotations)}}


def with_creation(content: Content, created_s: float) -> Content:
    """What a manifest that was copied from a cluster says of it is not so here."""
    known = {name: value for name, value in part(content, "metadata").items() if name != CREATION}
    if created_s:
        known[CREATION] = stamp(created_s)
    return {**content, "metadata": known}


def with_annotation(content: Content, name: str, value: str) -> Content:
    metadata = part(content, "metadata")
    return {**content, "metadata": {**metadata, "annotations": {**part(metadata, "annotations"), name: value}}}


def of_folder(folder: SourceFolder) -> Content:
    metadata: Content = {"name": folder.name, "namespace": folder.namespace}
    content: Content = {"apiVersion": "v1", "kind": folder.kind, "metadata": metadata}
    data: dict[str, object] = {}
    for key, value in folder.values.items():
        try:
            data[key] = value.decode()
        except UnicodeError:
            content["binaryData"] = {**part(content, "binaryData"), key: value}
    return {**content, "data": data}


def without_secrets(content: Content, before: Content) -> Content:
    """Of a Secret which keys differ, for a difference that is shown."""
    clear: Content = dict(plain_copy(content))
    for name in VALUES:
        given, known = content.get(name), part(before, name)
        if isinstance(given, dict):
            is_other = {key for key, value in given.items() if before and known.get(key) != value}
            clear[name] = {key: "*** (changed)" if key in is_other else "***" for key in given}
    return clear


def _keys(content: Content) -> Sequence[str]:
    return [str(key) for key in chain.from_iterable(part(content, name) for name in VALUES)]
