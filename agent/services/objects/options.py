# SPDX-License-Identifier: Apache-2.0
"""Checks the annotations `kepd.dev/…` of a Service. An invalid value disables only that annotation and is reported.
All annotations are in
docs/reference.md.
"""

from collections.abc import Callable, Iterator
from math import ceil
from typing import TypeVar

from agent.model.annotation_list import AnnotationFault, parse_duration
from agent.model.finding import Finding, shown
from agent.model.kube_objects import ServiceAnnotations
from agent.model.services.nft_table import Hashing
from agent.model.services.service import DEFAULT_OPTIONS, NEVER, ServiceOptions
from agent.services.objects.addresses import read_address

HEAVIEST = 256
MOST_KEYS = 16
MOST_ENDPOINTS = 10_000
LONGEST_WAIT_S = 86_400
FEWEST_CLIENTS, MOST_CLIENTS = 64, 65_536
T = TypeVar("T")

# Annotations that have a name and on which this version does not act.
NOT_YET = ("affinity_scope",)
ON_REMOVAL = "on-endpoint-removal"


def read_options(
    annotations: ServiceAnnotations | None,
    *,
    has_local_policy: bool,
    has_affinity: bool = False,
    where: str,
    findings: list[Finding],
) -> ServiceOptions:
    if annotations is None:
        return DEFAULT_OPTIONS

    def read(name: str, reader: Callable[[str], T], otherwise: T) -> T:
        text = getattr(annotations, name)
        if text is None:
            return otherwise
        path = f"metadata.annotations[kepd.dev/{name.replace('_', '-')}]"
        try:
            return reader(text)
        except ValueError as error:
            findings.append(Finding(where, path, f"{shown(text)}: {error}; the annotation is ignored"))
            return otherwise

    for name in NOT_YET:
        read(name, _unsupported, None)
    keys: tuple[str, ...] = read("topology_keys", _keys, ())
    if read("internal_policy", _words("prefer-local"), "") and not keys:
        keys = ("kubernetes.io/hostname", "*")
    if keys and has_local_policy:
        text = "topology keys have no effect beside a Local traffic policy; they are ignored"
        findings.append(Finding(where, "metadata.annotations", text))
        keys = ()
    hashing: Hashing = read("balance", _hashing, "")
    if hashing:
        against = _against_hashing(has_affinity=has_affinity, has_local_policy=has_local_policy, keys=keys)
        findings.extend(Finding(where, BALANCE, text) for text in against)
    empty = read("no_endpoints", _words("pass", "use-unready"), "")
    return ServiceOptions(
        hashing="" if has_affinity else hashing,
        topology_keys=keys,
        min_endpoints=read("topology_min_endpoints", _number(1, MOST_ENDPOINTS), 1),
        weights=read("endpoint_weights", _weights, ()),
        no_local_rejects=read("no_local_verdict", _words("reject", "drop"), "") == "reject",
        passes_when_empty=empty == "pass",
        uses_unready=empty == "use-unready",
        has_ranges_everywhere=read("source_ranges_everywhere", _words("true", "false"), "") == "true",
        ends_after_s=read("terminate_established", read_ending, None),
        affinity_clients=read("affinity_clients", _number(FEWEST_CLIENTS, MOST_CLIENTS), 0),
    )


BALANCE = "metadata.annotations[kepd.dev/balance]"


def _against_hashing(*, has_affinity: bool, has_local_policy: bool, keys: tuple[str, ...]) -> Iterator[str]:
    if has_affinity:
        yield "has no effect beside sessionAffinity: ClientIP, which already leads a client back to its endpoint"
    elif has_local_policy or keys:
        what = "a Local traffic policy" if has_local_policy else "topology keys"
        yield f"with {what} nodes have different endpoints: a flow that moves to another node gets another endpoint"


def _hashing(text: str) -> Hashing:
    if text == "maglev":
        return "flow"
    if text == "maglev,source":
        return "source"
    raise ValueError("expected maglev or maglev,source")


def _unsupported(_text: str) -> None:
    raise ValueError("this version does not know it")


def _words(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)}")
        return text

    return read


def read_ending(text: str) -> int:
    """Seconds after which connections to an endpoint that is gone are ended; NEVER for `never`. Raises ValueError."""
    word, sign, duration = text.partition(",")
    if text == "never":
        return NEVER
    if word != ON_REMOVAL:
        raise ValueError(f"expected never, {ON_REMOVAL} or {ON_REMOVAL},DURATION")
    try:
        wait_s = parse_duration(duration.strip()) if sign else 0.0
    except AnnotationFault as error:
        raise ValueError(str(error)) from error
    if wait_s > LONGEST_WAIT_S:
        raise ValueError(f"expected a duration of at most {LONGEST_WAIT_S // 3600}h")
    return ceil(wait_s)


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(part.strip() for part in text.split(","))
    if not all(keys) or len(keys) > MOST_KEYS or len(set(keys)) < len(keys):
        raise ValueError(f"expected a comma list of at most {MOST_KEYS} different label keys")
    if "*" in keys[:-1]:
        raise ValueError("* may only be the last key")
    return keys


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return read


def _weights(text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, sign, weight = part.strip().rpartition("=")
        if not sign or not weight.isascii() or not weight.isdecimal() or int(weight) > HEAVIEST:
            raise ValueError(f"expected a comma list of IP=W or node:NAME=W with W from 0 to {HEAVIEST}")
        if not name.startswith("node:"):
            address = read_address(name)
            if address is None:
                raise ValueError(f"{shown(name)} is not an address; nodes are written node:NAME")
            name = address.text
        if name in found:
            raise ValueError(f"{shown(name)} is given twice")
        found[name] = int(weight)
    return tuple(found.items())
