# SPDX-License-Identifier: Apache-2.0
"""A workload whose pods are made with another image, as `kubectl set image` would write it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from agent.model.finding import suggestion
from agent.model.images.reference import ReferenceInvalid, default_policy, parse_reference
from kepd_rehearsal.plan.changes import BadChange
from kepd_rehearsal.plan.cluster import Crew, Object, part

FIELDS = ("initContainers", "containers")


def parse_image(text: str) -> str:
    """IMAGE or CONTAINER=IMAGE."""
    name, sign, image = text.rpartition("=")
    try:
        parse_reference(image)
    except ReferenceInvalid as error:
        raise BadChange(f"{text!r}: {error}; expected IMAGE or CONTAINER=IMAGE") from error
    if sign and not name:
        raise BadChange(f"{text!r} names no container; expected IMAGE or CONTAINER=IMAGE")
    return text


def imaged(crew: Crew, value: str) -> Crew:
    """`value` empty: as it is. Raises BadChange where it is not clear which container is meant."""
    if not value:
        return crew
    name, _, image = value.rpartition("=")
    spec = part(crew.made, "spec")
    fields = {field: _maps(spec.get(field)) for field in FIELDS if _maps(spec.get(field))}
    if not fields and not name:
        # Without a template there is nothing beside it.
        return replace(crew, images=(image,), policies=(default_policy(image),))
    chosen = _chosen(crew, fields, name)
    new = {
        field: [{**one, "image": image} if one.get("name") == chosen.get("name") else one for one in known]
        for field, known in fields.items()
    }
    left = {one.get("image") for known in new.values() for one in known}
    policy = str(chosen.get("imagePullPolicy") or default_policy(image))
    policies: dict[str, str] = {}
    for old, its in zip(crew.images, crew.policies, strict=True):
        if old == chosen.get("image"):
            policies.setdefault(image, policy)
        if old in left or old != chosen.get("image"):
            policies.setdefault(old, its)
    made = {**crew.made, "spec": {**spec, **new}}
    return replace(crew, images=tuple(policies), policies=tuple(policies.values()), made=made)


def _chosen(crew: Crew, fields: Mapping[str, Sequence[Object]], name: str) -> Object:
    names = [str(one.get("name")) for known in fields.values() for one in known]
    if not name:
        main = fields.get("containers", ())
        if len(main) != 1:
            raise BadChange(f"{crew.key[1]}/{crew.key[2]} has {', '.join(names)}; expected --image CONTAINER=IMAGE")
        return main[0]
    if name not in names:
        known = f"there are {', '.join(names) or 'none'}"
        raise BadChange(f"{crew.key[1]}/{crew.key[2]} has no container {name}{suggestion(name, names)}; {known}")
    return next(one for known in fields.values() for one in known if one.get("name") == name)


def _maps(found: object) -> list[Object]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
