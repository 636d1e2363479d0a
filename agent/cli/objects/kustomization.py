# SPDX-License-Identifier: Apache-2.0
"""`apply -k DIR`: the manifests that a plain kustomization makes.

Plain is what changes names, labels, images and numbers, and ConfigMaps and Secrets from literals and files. Anything
else is refused by its key: a part that is left out would apply other objects than were meant.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.cli.session import CommandFailed, content_of
from agent.config.strict_yaml import documents_or_fault, plain
from agent.kinds.parts import items, part
from agent.kinds.registry import WORKLOADS
from agent.model.exit_codes import USAGE
from agent.objects.documents import dumped

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
KEYS = frozenset({
    "apiVersion", "kind", "metadata", "resources", "namespace", "namePrefix", "nameSuffix", "labels", "commonLabels",
    "commonAnnotations", "images", "replicas", "configMapGenerator", "secretGenerator", "generatorOptions",
})  # fmt: skip
GENERATOR_KEYS = frozenset({"name", "namespace", "literals", "files", "type", "options"})
WITHOUT_NAMESPACE = ("ServiceCIDR", "DeviceClass", "ResourceSlice", "Namespace")
DEEPEST = 20
Object = dict[str, Any]


def built(folder: Path) -> bytes:
    return b"\n---\n".join(dumped(one).encode() for one in _objects(folder, DEEPEST))


def _refused(place: Path, key: str, folder: Path) -> CommandFailed:
    text = f"{place}: {key} is more than kepctl makes of a kustomization"
    return CommandFailed(f"{text}; another program can: kubectl kustomize {folder} | kepctl apply -f -", USAGE)


def _objects(folder: Path, deepest: int) -> list[Object]:
    place = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if place is None:
        raise CommandFailed(f"{folder}: there is no {NAMES[0]}; files are applied with -f", USAGE)
    if not deepest:
        raise CommandFailed(f"{folder}: kustomizations lead to each other without end", USAGE)
    (rules,) = _documents(place) or [{}]
    if unknown := sorted(rules.keys() - KEYS):
        raise _refused(place, unknown[0], folder)
    made: list[Object] = []
    for resource in rules.get("resources") or ():
        path = folder / str(resource)
        if "://" in str(resource) or not path.exists():
            raise _refused(place, f"resource {resource}, which is no file here,", folder)
        made += _objects(path, deepest - 1) if path.is_dir() else _documents(path)
    for key, kind in (("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")):
        made += [_generated(kind, one, rules, place) for one in items(rules, key)]
    _change(made, rules, place)
    return made


def _documents(path: Path) -> list[Object]:
    trees, findings = documents_or_fault(content_of(path), str(path))
    found = [plain(tree) for tree in trees]
    if findings or not all(isinstance(one, dict) for one in found):
        raise CommandFailed(str(findings[0]) if findings else f"{path}: is no manifest", USAGE)
    return [one for one in found if isinstance(one, dict)]


def _generated(kind: str, rule: Object, rules: Object, place: Path) -> Object:
    folder, options = place.parent, part(rules, "generatorOptions") | part(rule, "options")
    unknown = sorted(rule.keys() - GENERATOR_KEYS) + sorted(options.keys() - {"disableNameSuffixHash", "labels"})
    if unknown or options.get("disableNameSuffixHash") is not True:
        what = unknown[0] if unknown else "a name with a hash (without disableNameSuffixHash: true)"
        raise _refused(place, f"{kind} {rule.get('name', '')}: {what}", folder)
    data: dict[str, bytes] = {}
    for literal in rule.get("literals") or ():
        key, _, value = str(literal).partition("=")
        data[key] = value.encode()
    for source in rule.get("files") or ():
        key, sign, path = str(source).partition("=")
        file = folder / (path if sign else key)
        data[key if sign else file.name] = content_of(file)
    made: Object = {"apiVersion": "v1", "kind": kind, "metadata": {"name": rule.get("name", "")}}
    made["metadata"] |= {one: rule[one] for one in ("namespace",) if one in rule}
    made["metadata"] |= {"labels": options["labels"]} if options.get("labels") else {}
    if kind == "Secret":
        made |= {"type": rule.get("type", "Opaque")}
        return made | {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}}
    try:
        return made | {"data": {key: value.decode() for key, value in data.items()}}
    except UnicodeError:
        return made | {"binaryData": {key: base64.b64encode(value).decode() for key, value in data.items()}}


def _change(made: Sequence[Object], rules: Object, place: Path) -> None:
    """In the order in which kustomize does it: the names of images and numbers of pods are those of the files."""
    for rule in items(rules, "images"):
        for container in (one for each in made for one in _containers(each)):
            container["image"] = _image(str(container.get("image", "")), rule)
    for rule in items(rules, "replicas"):
        for one in made:
            if one.get("kind") == "Deployment" and part(one, "metadata").get("name") == rule.get("name"):
                one["spec"]["replicas"] = rule.get("count")
    labels = [(part(rules, "commonLabels"), True, True)]
    for rule in items(rules, "labels"):
        if unknown := sorted(rule.keys() - {"pairs", "includeSelectors", "includeTemplates"}):
            raise _refused(place, f"labels: {unknown[0]}", place.parent)
        has_selectors = rule.get("includeSelectors") is True
        labels.append((part(rule, "pairs"), has_selectors, has_selectors or rule.get("includeTemplates") is True))
    annotations = part(rules, "commonAnnotations")
    for one in made:
        for pairs, has_selectors, has_templates in labels:
            _label(one, pairs, has_selectors=has_selectors, has_templates=has_templates)
        for metadata in _metadata(one, has_templates=True):
            if annotations:
                metadata["annotations"] = part(metadata, "annotations") | annotations
    _rename(made, rules)


def _rename(made: Sequence[Object], rules: Object) -> None:
    """With all that names one of them."""
    prefix, suffix = str(rules.get("namePrefix") or ""), str(rules.get("nameSuffix") or "")
    names = {(one.get("kind"), part(one, "metadata").get("name")) for one in made}
    renamed: Callable[[str], str] = lambda name: f"{prefix}{name}{suffix}"  # noqa: E731  # it is given its two words
    for one in made:
        metadata = one.setdefault("metadata", {})
        metadata["name"] = renamed(str(metadata.get("name", "")))
        if rules.get("namespace") and one.get("kind") not in WITHOUT_NAMESPACE:
            metadata["namespace"] = rules["namespace"]
        for kind, key, holder in _references(_pod_spec(one)):
            if (kind, holder.get(key)) in names:
                holder[key] = renamed(str(holder[key]))


def _references(spec: object) -> Iterator[tuple[str, str, Object]]:
    """Each place in a pod's spec that names a ConfigMap or a Secret."""
    if isinstance(spec, list):
        for one in spec:
            yield from _references(one)
    if not isinstance(spec, dict):
        return
    for name, value in spec.items():
        if name in ("configMap", "configMapRef", "configMapKeyRef") and isinstance(value, dict):
            yield "ConfigMap", "name", value
        elif name == "secret" and isinstance(value, dict):
            yield "Secret", "secretName" if "secretName" in value else "name", value
        elif name in ("secretRef", "secretKeyRef") and isinstance(value, dict):
            yield "Secret", "name", value
        elif name == "imagePullSecrets" and isinstance(value, list):
            yield from (("Secret", "name", one) for one in value if isinstance(one, dict))
        else:
            yield from _references(value)


def _template(made: Object) -> Object:
    if made.get("kind") == "CronJob":
        found = part(made, "spec", "jobTemplate", "spec").get("template")
    else:
        found = part(made, "spec").get("template") if made.get("kind") in WORKLOADS else None
    return found if isinstance(found, dict) else {}


def _pod_spec(made: Object) -> Object:
    found = (made if made.get("kind") == "Pod" else _template(made)).get("spec")
    return found if isinstance(found, dict) else {}


def _containers(made: Object) -> Iterator[Object]:
    for name in ("initContainers", "containers"):
        yield from (one for one in _pod_spec(made).get(name) or () if isinstance(one, dict))


def _metadata(made: Object, *, has_templates: bool) -> Iterator[Object]:
    yield made.setdefault("metadata", {})
    if has_templates and _template(made):
        yield _template(made).setdefault("metadata", {})


def _label(made: Object, pairs: Object, *, has_selectors: bool, has_templates: bool) -> None:
    if not pairs:
        return
    for metadata in _metadata(made, has_templates=has_templates):
        metadata["labels"] = part(metadata, "labels") | pairs
    if has_selectors and made.get("kind") in ("Deployment", "DaemonSet", "StatefulSet"):
        selector = made["spec"].setdefault("selector", {})
        selector["matchLabels"] = part(selector, "matchLabels") | pairs
    elif has_selectors and made.get("kind") == "Service" and part(made, "spec").get("selector"):
        made["spec"]["selector"] |= pairs


def _image(image: str, rule: Object) -> str:
    name, _, digest = image.partition("@")
    head, colon, tag = name.rpartition(":")
    name, tag = (head, tag) if colon and "/" not in tag else (name, "")
    if name != rule.get("name"):
        return image
    name = rule.get("newName") or name
    if rule.get("digest") or (digest and not rule.get("newTag")):
        return f"{name}@{rule.get('digest') or digest}"
    tag = rule.get("newTag") or tag
    return f"{name}:{tag}" if tag else name
