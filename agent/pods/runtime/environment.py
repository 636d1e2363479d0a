# SPDX-License-Identifier: Apache-2.0
"""Variables of a container, and `$(VAR)` in its command.

Order and precedence, expansion, where values come from. References double a text
with each line of a manifest, so what they make is measured before it is made.
Never: puts a value into an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from agent.model.pods.container_fields import Env, EnvFrom, EnvSource, FileReference, KeyReference, ResourceReference
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.quantity import parse_quantity
from agent.pods.runtime.qos import amount

REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]\Z")
PRINTABLE_NAME = re.compile(r"[ -<>-~]+\Z")
NANOS = 10**9
ESCAPES = {
    "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b", "\f": "\\f",
    "\v": "\\v",
}  # fmt: skip
MOST_FILE_BYTES = 64 << 10
# What execve takes: one string with the zero at its end, and all strings of a program together.
MOST_STRING_BYTES, MOST_PROGRAM_BYTES = 128 << 10, 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSource:
    """A ConfigMap or Secret; no text shows its values. `binary` keys have values that are no text: volumes can have
    them, variables cannot."""

    kind: str
    namespace: str
    name: str
    data: Mapping[str, bytes] = field(repr=False)
    file: str = ""
    source: str = ""
    binary: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


Sources = Mapping[tuple[str, str, str], EnvironmentSource]


class ConfigProblem(Exception):
    """A container cannot be made as it is described; something outside its manifest has to change."""

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


class ClaimPlace(msgspec.Struct, frozen=True):
    """Where the volume of a claim is, and what has to be there, as a hostPath has it; or why there is none. `is_made`:
    it is kepd's own directory."""

    path: str = ""
    check: str = ""
    is_made: bool = False
    why: str = ""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod may learn. `read_file` gives a file of an emptyDir, or None. `claims` are the pod's, by name."""

    node: str = ""
    host_ips: tuple[str, ...] = ()
    pod_ips: tuple[str, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    disk_bytes: int = 0
    claims: Mapping[str, ClaimPlace] = {}
    read_file: Callable[[str, str], bytes | None] = lambda _volume, _path: None


class ProgramRoom:
    """What the kernel takes for the variables and arguments of one program, and how much of it is taken."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._taken = 0

    def put(self, name: str, text: str, path: str) -> None:
        """A later text of the same name replaces the earlier one. Raises ConfigProblem."""
        size = len(text.encode("utf-8", "surrogateescape")) + 1
        if size > MOST_STRING_BYTES:
            raise _too_long(path, size, MOST_STRING_BYTES)
        self._taken += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        if self._taken > MOST_PROGRAM_BYTES:
            text = f"{path}: with it the variables and arguments of the container have {self._taken} bytes; the kernel "
            text += f"takes at most {MOST_PROGRAM_BYTES} (execve), so the container is not made"
            raise ConfigProblem(text)


def _too_long(path: str, size: int, most: int) -> ConfigProblem:
    text = f"{path}: has at least {size} bytes once its references are replaced; expected at most {most}, which is all "
    return ConfigProblem(text + "that the kernel takes. The container is not made; larger content fits into a volume")


def resolve_environment(
    pod: PodSpec, container: ContainerSpec, sources: Sources, facts: PodFacts, room: ProgramRoom | None = None
) -> tuple[tuple[str, str], ...]:
    """Names and values in the order in which they were given first; `room` is where they take it from."""
    found: dict[str, str] = {}
    room, place = room or ProgramRoom(), pod.path_of(container)

    def put(name: str, value: str, path: str) -> None:
        room.put(name, f"{name}={value}", path)
        found[name] = value

    for number, entry in enumerate(container.fields.env_from):
        for name, value in _all_of(entry, pod, sources).items():
            put(name, value, f"{place}.envFrom[{number}], key {name.removeprefix(entry.prefix)}")
    for number, env in enumerate(container.fields.env):
        path = f"{place}.env[{number}]"
        if env.value_from is None:
            put(env.name, expand(env.value, found, f"{path}.value"), f"{path}.value")
        elif (given := _value(env, pod, container, sources, facts)) is not None:
            put(env.name, given, f"{path}.valueFrom")
    return tuple(found.items())


def expand(text: str, values: Mapping[str, str], path: str, most: int = MOST_STRING_BYTES) -> str:
    """`$(NAME)` by its value where it has one; `$$` is a dollar sign. Raises ConfigProblem."""

    def put(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        return values.get(found[2], found[0])

    size = len(text) + sum(len(put(one)) - len(one[0]) for one in REFERENCE.finditer(text))
    if size >= most:
        raise _too_long(path, size, most)
    return REFERENCE.sub(put, text)


def expand_all(texts: Sequence[str], values: Mapping[str, str], path: str, room: ProgramRoom) -> list[str]:
    """The arguments of a program. Raises ConfigProblem."""
    found = []
    for number, text in enumerate(texts):
        place = f"{path}[{number}]"
        found.append(expand(text, values, place))
        room.put(place, found[-1], place)
    return found


def referenced(text: str) -> list[str]:
    return [found[2] for found in REFERENCE.finditer(text) if found[1] != "$"]


def _all_of(entry: EnvFrom, pod: PodSpec, sources: Sources) -> dict[str, str]:
    reference, kind = (
        (entry.config_map_ref, "ConfigMap") if entry.config_map_ref is not None else (entry.secret_ref, "Secret")
    )
    if reference is None:
        return {}
    source = sources.get((kind, pod.namespace, reference.name))
    if source is None:
        if reference.optional:
            return {}
        raise ConfigProblem(f'{kind.lower()} "{reference.name}" not found')
    texts = ((key, value) for key, value in sorted(source.data.items()) if key not in source.binary)
    named = {entry.prefix + key: value.decode("utf-8", "surrogateescape") for key, value in texts}
    return {name: value for name, value in named.items() if PRINTABLE_NAME.match(name)}


def _value(env: Env, pod: PodSpec, container: ContainerSpec, sources: Sources, facts: PodFacts) -> str | None:
    """Of a variable that has its value from elsewhere; None leaves it out."""
    source = env.value_from or EnvSource()
    if source.field_ref is not None:
        return field_value(source.field_ref.field_path, pod, facts)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, pod, container, facts)
    if source.config_map_key_ref is not None:
        return _key("ConfigMap", source.config_map_key_ref, pod, sources)
    if source.secret_key_ref is not None:
        return _key("Secret", source.secret_key_ref, pod, sources)
    return _file_key(source.file_key_ref, facts) if source.file_key_ref is not None else ""


def _key(kind: str, reference: KeyReference, pod: PodSpec, sources: Sources) -> str | None:
    source = sources.get((kind, pod.namespace, reference.name))
    value = source.data.get(reference.key) if source is not None else None
    is_binary = source is not None and reference.key in source.binary
    if value is not None and not is_binary:
        return value.decode("utf-8", "surrogateescape")
    if reference.optional:
        return None
    if source is None:
        raise ConfigProblem(f'{kind.lower()} "{reference.name}" not found')
    why = "; its value is no text, which only volumes can have" if is_binary else ""
    raise ConfigProblem(f"couldn't find key {reference.key} in {kind} {pod.namespace}/{reference.name}{why}")


def field_value(path: str, pod: PodSpec, facts: PodFacts) -> str:
    """A field of the pod; empty for what does not exist."""
    found = SUBSCRIPT.match(path)
    if found:
        return dict(pod.labels if found[1] == "labels" else pod.annotations).get(found[2], "")
    host_ip = facts.host_ips[0] if facts.host_ips else ""
    pod_ips = facts.pod_ips or (facts.host_ips if pod.spec.host_network else ())
    values = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "metadata.labels": _lines(pod.labels),
        "metadata.annotations": _lines(pod.annotations),
        "spec.nodeName": facts.node,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ip,
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": pod_ips[0] if pod_ips else "",
        "status.podIPs": ",".join(pod_ips),
    }
    return values.get(path, "")


def _lines(pairs: tuple[tuple[str, str], ...]) -> str:
    """As downward files have maps: one `key="value"` per line."""
    return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(pairs))


def _escaped(text: str) -> str:
    """Everything on one line, as Go quotes it."""
    return "".join(ESCAPES.get(sign) or (sign if sign.isprintable() else _code(sign)) for sign in text)


def _code(sign: str) -> str:
    number = ord(sign)
    return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def resource_value(reference: ResourceReference, pod: PodSpec, container: ContainerSpec, facts: PodFacts) -> str:
    """A request or limit in units of the divisor, rounded up; what has no limit has the node's."""
    named = pod.by_name.get(reference.container_name, container)
    kind, _, resource = reference.resource.partition(".")
    own = named.fields.resources.limits if kind == "limits" else named.fields.resources.requests
    whole = pod.spec.resources.limits if kind == "limits" else pod.spec.resources.requests
    nanos = amount(own, resource)
    if not nanos and kind == "requests":
        nanos = amount(named.fields.resources.limits, resource)
    nanos = nanos or amount(whole, resource)
    if not nanos and kind == "limits":
        whole_node = {"cpu": facts.cpus, "memory": facts.memory_bytes, "ephemeral-storage": facts.disk_bytes}
        nanos = whole_node.get(resource, 0) * NANOS
    divisor = parse_quantity(str(reference.divisor)).nanos or NANOS
    return str(-(-nanos // divisor))


def _file_key(reference: FileReference, facts: PodFacts) -> str | None:
    """KEP-3721: the last assignment wins; a missing file honours `optional`, as the KEP says (against Q-ENVFILE)."""
    content = facts.read_file(reference.volume_name, reference.path)
    if content is not None and len(content) > MOST_FILE_BYTES:
        raise ConfigProblem(f"environment file {reference.path} has more than {MOST_FILE_BYTES} bytes")
    value = parse_environment_file(content.decode("utf-8", "replace")).get(reference.key) if content else None
    if value is None and not reference.optional:
        what = f"key {reference.key} in file" if content is not None else "file"
        raise ConfigProblem(f"couldn't find {what} {reference.path} of volume {reference.volume_name}")
    return value


def parse_environment_file(text: str) -> dict[str, str]:
    """`NAME='value'` per entry; values in single quotes may have several lines; `#` begins a comment line."""
    found = {}
    position = 0
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        name, equals, rest = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            position = end + 1
        elif equals and name == name.strip() and name and rest.startswith("'"):
            opened = position + len(name) + 2
            closed = text.find("'", opened)
            if closed < 0:
                raise ConfigProblem(f"environment file: {name} has no closing quote")
            found[name] = text[opened:closed]
            position = closed + 1
        elif equals and name == name.strip() and name and (not rest or rest[0].isspace()):
            found[name] = ""
            position = end + 1
        else:
            raise ConfigProblem("environment file: a line is not of the form NAME='value'")
    return found
