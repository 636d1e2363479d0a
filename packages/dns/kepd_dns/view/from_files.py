# SPDX-License-Identifier: Apache-2.0
"""What a bare node with these manifests would answer, without any daemon.

Addresses that kepd gives at run time, to Services without one and to pods, are in no file, and said to be so.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.config.strict_yaml import UnreadableYaml
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.dns_report import NameExplanation, NameStep
from agent.objects.reading import documents_in
from kepd_dns.handover.state import ServiceName
from kepd_dns.handover.status import Explanation
from kepd_dns.view.explained import own_explanation
from kepd_dns.view.searching import Search, cluster_search, questions, search_of, step_of
from kepd_dns.wire.names import Malformed, to_wire
from kepd_dns.wire.records_text import type_number
from kepd_dns.zones.manifests import service_names
from kepd_dns.zones.own import OwnZone

ZONE = "cluster.local"
T = TypeVar("T")


class UnreadableFile(Exception):
    """With the place, and what is wrong there."""


def explain_files(files: Mapping[str, bytes], name: str, type_: str, pod: str, zone: str = ZONE) -> NameExplanation:
    """`pod` is NAMESPACE/NAME of who asks, or empty. Raises UnreadableFile."""
    try:
        documents = [document for _, document in documents_in(files)]
    except UnreadableYaml as error:
        raise UnreadableFile(str(error)) from error
    services = [_read(one, Service) for one in documents if one.get("kind") == "Service"]
    slices = [_read(one, EndpointSlice) for one in documents if one.get("kind") == "EndpointSlice"]
    named = list(service_names(services, slices))
    own = OwnZone(zone)
    for one in named:
        own.put(one)
    kind = type_number(type_)
    if kind is None:
        raise UnreadableFile(f"{type_!r} is no type of records; expected one such as A, AAAA, SRV or TYPE65")
    notes = dict(_notes(services, named))
    steps: list[NameStep] = []
    for asked in questions(name, _search(documents, pod, zone)):
        step = _step(own, asked, kind, zone, type_)
        labels = asked.rstrip(".").split(".")
        said = tuple(text for key, text in notes.items() if _is_of(labels, key))
        steps.append(msgspec.structs.replace(step, sentences=(*step.sentences, *said)))
        if step.code == "NOERROR" and (step.records or type_ not in ("A", "AAAA")):
            break
    return NameExplanation(tuple(steps), bool(steps[-1].records))


def _notes(services: Iterable[Service], named: Iterable[ServiceName]) -> Iterator[tuple[str, str]]:
    """By Service: what is missing in the files, and not on a node."""
    told = {one.key: one for one in named}
    for service in services:
        key = f"{service.metadata.namespace}/{service.metadata.name}"
        if key not in told:
            yield key, f"{key} has no address in the files; kepd gives it one"
        elif told[key].is_headless and not told[key].endpoints:
            yield key, f"{key} has no endpoints in the files; those are pods that run"


def _step(own: OwnZone, name: str, kind: int, zone: str, type_: str) -> NameStep:
    try:
        wire = to_wire(name)
    except Malformed as error:
        raise UnreadableFile(str(error)) from error
    if own.is_own(wire):
        return step_of(own_explanation(own, wire, kind, zone), type_)
    return step_of(Explanation(name=f"{name.rstrip('.')}.", zone=".", kind="other", upstreams=NODE), type_)


NODE = ("the servers of dns.resolvConf by udp",)


def _is_of(labels: list[str], key: str) -> bool:
    namespace, name = key.split("/", 1)
    return any(labels[at : at + 3] == [name, namespace, "svc"] for at in range(len(labels)))


def _search(documents: list[dict[str, object]], pod: str, zone: str) -> Search:
    """Of a pod that is in the files; of another one what its namespace would give it."""
    if not pod:
        return Search()
    namespace, name = pod.split("/", 1)
    whole = cluster_search(namespace, zone)
    for one in documents:
        metadata, spec = _part(one, "metadata"), _part(one, "spec")
        if one.get("kind") != "Pod" or (metadata.get("namespace") or "default", metadata.get("name")) != (
            namespace,
            name,
        ):
            continue
        config = _part(spec, "dnsConfig")
        is_cluster = spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst" and not spec.get("hostNetwork")
        base = whole if is_cluster or spec.get("dnsPolicy") == "ClusterFirstWithHostNet" else Search()
        options = [f"ndots:{base.ndots}", *_options(config)]
        searches = config.get("searches")
        more = [str(each) for each in searches] if isinstance(searches, list) else []
        return search_of(dict.fromkeys((*base.domains, *more)), options)
    return whole


def _options(config: dict[str, object]) -> Iterator[str]:
    options = config.get("options")
    for one in options if isinstance(options, list) else ():
        if isinstance(one, dict):
            yield f"{one.get('name')}:{one.get('value')}"


def _part(content: dict[str, object], name: str) -> dict[str, object]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def _read(content: dict[str, object], kind: type[T]) -> T:
    metadata = _part(content, "metadata")
    filled = {**content, "metadata": {**metadata, "namespace": metadata.get("namespace") or "default"}}
    try:
        return msgspec.convert(filled, kind)
    except msgspec.ValidationError as error:
        raise UnreadableFile(f"{content.get('kind')} {metadata.get('name')}: {error}") from error
