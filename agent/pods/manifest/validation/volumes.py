# SPDX-License-Identifier: Apache-2.0
"""Volumes, as far as they do without a control plane."""

from collections.abc import Collection, Sequence

from agent.model.pods.container_fields import KeyToPath
from agent.model.pods.fields import DownwardItem, EmptyDir, HostPath, PodFields, Projection, Volume
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.containers import RESOURCES, SUBSCRIPT, check_divisor

KINDS = {
    "empty_dir": "emptyDir",
    "host_path": "hostPath",
    "config_map": "configMap",
    "secret": "secret",
    "downward_api": "downwardAPI",
    "projected": "projected",
    "image": "image",
    "persistent_volume_claim": "persistentVolumeClaim",
}
HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
HIGHEST_MODE = 0o777
VOLUME_FIELDS = frozenset({
    "metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
})  # fmt: skip


def check_volumes(out: Complaints, spec: PodFields) -> None:
    names: set[str] = set()
    containers = {one.name for one in (*spec.init_containers, *spec.containers)}
    for index, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{index}]"
        out.label(f"{path}.name", volume.name)
        if volume.name in names:
            out.duplicate(f"{path}.name", volume.name)
        names.add(volume.name)
        _volume(out, volume, path, containers)


def _volume(out: Complaints, volume: Volume, path: str, containers: Collection[str]) -> None:
    given = [key for name, key in KINDS.items() if getattr(volume, name) is not None]
    for key in given[1:]:
        out.forbidden(f"{path}.{key}", "may not specify more than 1 volume type")
    if volume.empty_dir is not None:
        _empty_dir(out, volume.empty_dir, f"{path}.emptyDir")
    if volume.host_path is not None:
        check_host_path(out, volume.host_path, f"{path}.hostPath")
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim.claim_name
        if claim:
            out.subdomain(f"{path}.persistentVolumeClaim.claimName", claim)
        else:
            out.required(f"{path}.persistentVolumeClaim.claimName")
    if volume.config_map is not None:
        if not volume.config_map.name:
            out.required(f"{path}.configMap.name")
        _items(out, volume.config_map.items, volume.config_map.default_mode, f"{path}.configMap")
    if volume.secret is not None:
        if not volume.secret.secret_name:
            out.required(f"{path}.secret.secretName")
        _items(out, volume.secret.items, volume.secret.default_mode, f"{path}.secret")
    if volume.downward_api is not None:
        _mode(out, volume.downward_api.default_mode, f"{path}.downwardAPI.defaultMode")
        _downward(out, volume.downward_api.items, f"{path}.downwardAPI", containers)
    if volume.projected is not None:
        _mode(out, volume.projected.default_mode, f"{path}.projected.defaultMode")
        for index, source in enumerate(volume.projected.sources):
            _projection(out, source, f"{path}.projected.sources[{index}]", containers)
        _conflicts(out, volume.projected.sources, f"{path}.projected.sources")
    if volume.image is not None:
        if not volume.image.reference:
            out.required(f"{path}.image.reference")
        if volume.image.pull_policy:
            out.one_of(f"{path}.image.pullPolicy", volume.image.pull_policy, ("Always", "IfNotPresent", "Never"))


def _empty_dir(out: Complaints, given: EmptyDir, path: str) -> None:
    if given.medium not in ("", "Memory", "HugePages") and not _is_page_size(given.medium):
        out.one_of(f"{path}.medium", given.medium, ("", "HugePages", "HugePages-SIZE", "Memory"))
    if given.size_limit is not None:
        try:
            is_right = parse_quantity(str(given.size_limit)).nanos >= 0
        except QuantityError:
            is_right = False
        if not is_right:
            out.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _is_page_size(medium: str) -> bool:
    head, _, size = medium.partition("-")
    try:
        return head == "HugePages" and parse_quantity(size).nanos > 0
    except QuantityError:
        return False


def check_host_path(out: Complaints, given: HostPath, path: str) -> None:
    if not given.path:
        out.required(f"{path}.path")
    elif ".." in given.path.split("/"):
        out.invalid(f"{path}.path", given.path, "must not contain '..'")
    elif not given.path.startswith("/"):
        out.invalid(f"{path}.path", given.path, "must be an absolute path of the node, such as /srv/data")
    out.one_of(f"{path}.type", given.type, HOST_PATH_TYPES)


def _mode(out: Complaints, mode: int | None, path: str) -> None:
    if mode is not None and not 0 <= mode <= HIGHEST_MODE:
        out.invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _items(out: Complaints, items: Sequence[KeyToPath], default_mode: int, path: str) -> None:
    _mode(out, default_mode, f"{path}.defaultMode")
    for index, item in enumerate(items):
        place = f"{path}.items[{index}]"
        if not item.key:
            out.required(f"{place}.key")
        _file_path(out, item.path, f"{place}.path")
        _mode(out, item.mode, f"{place}.mode")


def _file_path(out: Complaints, given: str, path: str) -> None:
    if not given:
        out.required(path)
    elif given.startswith("/"):
        out.invalid(path, given, "must be a relative path")
    elif ".." in given.split("/"):
        out.invalid(path, given, "must not contain '..'")
    elif given.startswith(".."):
        out.invalid(path, given, "must not start with '..'")


def _downward(out: Complaints, items: Sequence[DownwardItem], path: str, containers: Collection[str]) -> None:
    for index, item in enumerate(items):
        place = f"{path}.items[{index}]"
        _file_path(out, item.path, f"{place}.path")
        _mode(out, item.mode, f"{place}.mode")
        if item.field_ref is not None and item.resource_field_ref is not None:
            out.invalid(place, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
        elif item.field_ref is not None:
            field = item.field_ref.field_path
            if field not in VOLUME_FIELDS and not SUBSCRIPT.match(field):
                out.one_of(f"{place}.fieldRef.fieldPath", field, sorted(VOLUME_FIELDS))
        elif item.resource_field_ref is not None:
            if not item.resource_field_ref.container_name:
                out.required(f"{place}.resourceFieldRef.containerName")
            elif item.resource_field_ref.container_name not in containers:
                out.missing(f"{place}.resourceFieldRef.containerName", item.resource_field_ref.container_name)
            if not RESOURCES.match(item.resource_field_ref.resource):
                out.invalid(
                    f"{place}.resourceFieldRef.resource",
                    item.resource_field_ref.resource,
                    "must be limits or requests of cpu, memory, ephemeral-storage or hugepages-SIZE",
                )
            else:
                check_divisor(out, item.resource_field_ref, f"{place}.resourceFieldRef.divisor")
        else:
            out.required(place, "one of fieldRef and resourceFieldRef is required")


def _conflicts(out: Complaints, sources: Sequence[Projection], path: str) -> None:
    taken: set[str] = set()
    for index, source in enumerate(sources):
        listed = (("configMap", source.config_map), ("secret", source.secret), ("downwardAPI", source.downward_api))
        for key, given in listed:
            for item in given.items if given is not None else ():
                if item.path in taken:
                    out.invalid(f"{path}[{index}].{key}", item.path, "conflicting duplicate paths")
                taken.add(item.path)


def _projection(out: Complaints, source: Projection, path: str, containers: Collection[str]) -> None:
    for key, given in (
        ("serviceAccountToken", source.service_account_token),
        ("clusterTrustBundle", source.cluster_trust_bundle),
    ):
        if given is not None:
            out.forbidden(f"{path}.{key}", "needs a control plane, which kepd does not have")
            return
    listed = [one for one in (source.config_map, source.secret, source.downward_api) if one is not None]
    if len(listed) != 1:
        out.required(path, "exactly one of configMap, secret and downwardAPI is required")
    for key, one in (("configMap", source.config_map), ("secret", source.secret)):
        if one is not None:
            if not one.name:
                out.required(f"{path}.{key}.name")
            _items(out, one.items, 0, f"{path}.{key}")
    if source.downward_api is not None:
        _downward(out, source.downward_api.items, f"{path}.downwardAPI", containers)
