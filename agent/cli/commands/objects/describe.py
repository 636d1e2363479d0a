# SPDX-License-Identifier: Apache-2.0
"""`kepctl describe`: one pod, Service or node in full, with its events at the end."""

from collections.abc import Iterable

import click

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import SERVICE as PODS
from agent.cli.completing import complete_objects, names_of
from agent.cli.objects.listed import listed
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.objects.words import nearest
from agent.cli.objects.workload_pods import find_workload, pods_of
from agent.cli.session import CommandFailed, Session
from agent.cli.texts.described import node_lines, pod_lines, service_lines
from agent.cli.texts.described_workload import workload_lines
from agent.kinds.registry import BY_WORD, Kind
from agent.kinds.services.services import SERVICE as SERVICES
from agent.model.exit_codes import CONFLICT, NOT_FOUND
from agent.wire.kepd.v1 import list_pb2, node_pb2, pod_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

NODE = "kepd.v1.NodeService"
DESCRIBED = ("pods", "deployments", "daemonsets", "jobs", "services", "claims", "nodes")


def complete_described(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """As everywhere, but of kinds only what can be described."""
    if param.name == "name":
        kind = BY_WORD.get(str(ctx.params.get("kind")).lower())
        return names_of(ctx, kind, typed) if kind is not None else []
    return [word for word in complete_objects(ctx, param, typed) if "/" in word or word in DESCRIBED]


@click.command()
@click.argument("kind", metavar="KIND[/NAME]", shell_complete=complete_described)
@click.argument("name", metavar="[NAME]", default="", shell_complete=complete_described)
@click.option("-o", "--output", hidden=True)
@click.pass_obj
def describe(session: Session, kind: str, name: str, output: str | None) -> None:
    """Show all details of a pod, workload, Service, claim or the node, in sections as kubectl has them."""
    if output is not None:
        given = " ".join(one for one in (kind, name) if one)
        raise click.UsageError(f"describe has no -o {output}; for programs there is kepctl get {given} -o json")
    word, slash, rest = kind.partition("/")
    name = rest if slash else name
    known = BY_WORD.get(word.lower())
    if known is None or known.plural not in DESCRIBED:
        close = nearest(word.lower(), (one for plural in DESCRIBED for one in BY_WORD[plural].words))
        hint = (
            f'did you mean "{close}"?' if close else "expected pod, deployment, daemonset, job, service, claim or node"
        )
        raise click.UsageError(f'"{word}" cannot be described; {hint}')
    if not name and known.has_namespace:
        raise click.UsageError(f"no {known.singular} is named; expected kepctl describe {known.singular} NAME")
    with connected(session) as daemon:
        match known.plural:
            case "nodes":
                found = _node(daemon)
            case "pods":
                found = pod_described(daemon, name)
            case "services":
                found = service_described(daemon, name)
            case "claims":
                found = _claim(daemon, name)
            case _:
                found = _workload(daemon, known, name)
    for line in found:
        click.echo(line)


def pod_described(daemon: Client, name: str) -> Iterable[str]:
    namespace, short = find_pod(daemon, name)
    asked = pod_pb2.GetPodRequest(namespace=namespace, name=short, with_spec=True)
    pod = daemon.call(f"{PODS}/GetPod", asked, pod_pb2.GetPodResponse).pod
    why = pod_pb2.ExplainPodRequest(namespace=namespace, name=short)
    explained = daemon.call(f"{PODS}/ExplainPod", why, pod_pb2.ExplainPodResponse)
    events = [one for one in events_of(daemon, namespace, short) if not one.object_kind]
    return pod_lines(pod, explained.waits_for, events)


def _claim(daemon: Client, name: str) -> Iterable[str]:
    from agent.kinds.devices.claims import claim_lines

    namespace, _, short = name.rpartition("/")
    namespace = namespace or "default"
    claims = listed(daemon, BY_WORD["claims"]).items
    found = next((one for one in claims if (one.namespace, one.name) == (namespace, short)), None)
    if found is None:
        raise CommandFailed(f"no claim {namespace}/{short} is known here; `kepctl get claims` has them", NOT_FOUND)
    events = events_of(daemon, namespace, short)
    return [*claim_lines(found), *(f"Event:      {one.reason}: {one.message}" for one in events)]


def _workload(daemon: Client, kind: Kind, name: str) -> Iterable[str]:
    found, made = find_workload(daemon, kind, name)
    pods = pods_of(daemon, kind, found, made)
    events = [one for one in events_of(daemon, found.namespace, found.name) if one.object_kind == kind.api]
    events += [event for pod in pods for event in events_of(daemon, pod.namespace, pod.name)]
    return workload_lines(kind.api, made, pods, sorted(events, key=lambda one: one.last_seen.ToNanoseconds()))


def service_described(daemon: Client, name: str) -> Iterable[str]:
    namespace, short = given_pod(daemon, name)
    options = list_pb2.ListOptions(filter=f"namespace={namespace},name={short}")
    answer = daemon.call(f"{SERVICES}/ListServices", pb.ListServicesRequest(options=options), pb.ListServicesResponse)
    if not answer.services:
        raise CommandFailed(f'no Service "{namespace}/{short}"', NOT_FOUND)
    request = pb.ListEndpointsRequest(service=f"{namespace}/{short}")
    endpoints = daemon.call(f"{SERVICES}/ListEndpoints", request, pb.ListEndpointsResponse).endpoints
    return service_lines(answer.services[0], endpoints, events_of(daemon, namespace, short))


def _node(daemon: Client) -> Iterable[str]:
    node = daemon.call(f"{NODE}/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse).node
    planes = daemon.call(f"{NODE}/ListPlanes", node_pb2.ListPlanesRequest(), node_pb2.ListPlanesResponse).planes
    try:
        pods = list(daemon.call(f"{PODS}/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse).pods)
    except CommandFailed as error:
        # The pods plane is off on nodes whose pods are a kubelet's.
        if error.exit_code != CONFLICT:
            raise
        pods = []
    return node_lines(node, planes, pods, events_of(daemon, "", ""))


def events_of(daemon: Client, namespace: str, name: str) -> list[node_pb2.Event]:
    """Those of one object, or (empty) of the node itself, of every kepd of this node, oldest first."""
    events: list[node_pb2.Event] = []
    asked: Client | None = daemon
    options = list_pb2.ListOptions(filter=f"namespace={namespace},object_name={name}")
    while asked is not None:
        request = node_pb2.ListEventsRequest(options=options)
        events += asked.call(f"{NODE}/ListEvents", request, node_pb2.ListEventsResponse).events
        asked = asked.other
    return sorted(events, key=lambda one: one.last_seen.ToNanoseconds())
