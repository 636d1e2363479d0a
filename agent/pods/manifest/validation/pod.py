# SPDX-License-Identifier: Apache-2.0
"""A pod as a whole: the order of complaints, and warnings about what is right and yet unwise."""

import re
from collections.abc import Iterator, Sequence

from agent.model.pods.container_fields import Container
from agent.model.pods.fields import DnsConfig, PodFields, PodSecurityContext
from agent.pods.manifest.validation.complaint import Complaint, Complaints
from agent.pods.manifest.validation.containers import POLICIES, check_containers, check_id, check_profile
from agent.pods.manifest.validation.resources import check_claims, check_resources, check_whole
from agent.pods.manifest.validation.volumes import check_volumes

FORMER_REGISTRY = "k8s.gcr.io"
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
FIELD_OPERATORS = ("In", "NotIn")
LONGEST_DEADLINE_S = 2147483647
LONGEST_GRACE_S = 2**31 - 1
MOST_SERVERS, MOST_SEARCHES, MOST_SEARCH_LETTERS, LONGEST_SEARCH = 3, 32, 2048, 253
LONGEST_HOST_NAME, LONGEST_SYSCTL = 64, 253
SEARCH = re.compile(r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?)*\Z")
IPC_SYSCTL = re.compile(r"kernel\.(shm|msg|sem)|fs\.mqueue\.")
SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*\Z")


def check_pod(spec: PodFields) -> list[Complaint]:
    out = Complaints()
    given_s = spec.termination_grace_period_seconds
    grace_s = given_s if given_s >= 0 else 1
    check_volumes(out, spec)
    check_containers(out, spec, grace_s)
    out.one_of("spec.restartPolicy", spec.restart_policy, POLICIES)
    out.one_of("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    _dns(out, spec)
    if grace_s > LONGEST_GRACE_S:
        out.invalid("spec.terminationGracePeriodSeconds", grace_s, f"must be at most {LONGEST_GRACE_S}")
    deadline_s = spec.active_deadline_seconds
    if deadline_s is not None and not 1 <= deadline_s <= LONGEST_DEADLINE_S:
        out.invalid("spec.activeDeadlineSeconds", deadline_s, "must be between 1 and 2147483647, inclusive")
    for name in ("hostname", "subdomain"):
        if getattr(spec, name):
            out.label(f"spec.{name}", getattr(spec, name))
    _host_names(out, spec)
    _host_aliases(out, spec)
    if spec.preemption_policy:
        out.one_of("spec.preemptionPolicy", spec.preemption_policy, ("Never", "PreemptLowerPriority"))
    _namespaces(out, spec)
    if spec.security_context is not None:
        _security(out, spec, spec.security_context)
    if spec.os is not None and spec.os.name not in ("linux", "windows"):
        out.one_of("spec.os.name", spec.os.name, ("linux", "windows"))
    check_resources(out, spec.resources, "spec.resources", is_pod=True)
    check_whole(out, spec)
    check_claims(out, spec)
    _affinity(out, spec)
    for index, gate in enumerate(spec.readiness_gates):
        if not gate.condition_type:
            out.required(f"spec.readinessGates[{index}].conditionType")
    return out.found


def _affinity(out: Complaints, spec: PodFields) -> None:
    given = spec.affinity.node_affinity if spec.affinity is not None else None
    required = given.required_during_scheduling_ignored_during_execution if given is not None else None
    if required is None:
        return
    place = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not required.node_selector_terms:
        out.required(place, "must have at least one node selector term")
    for number, term in enumerate(required.node_selector_terms):
        for kind, listed in (("matchExpressions", term.match_expressions), ("matchFields", term.match_fields)):
            for index, one in enumerate(listed):
                at = f"{place}[{number}].{kind}[{index}]"
                out.one_of(f"{at}.operator", one.operator, OPERATORS if kind == "matchExpressions" else FIELD_OPERATORS)
                if one.operator in ("In", "NotIn") and not one.values:
                    out.required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
                elif one.operator in ("Gt", "Lt") and len(one.values) != 1:
                    out.required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
                elif one.operator in ("Exists", "DoesNotExist") and one.values:
                    out.forbidden(f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")


def _dns(out: Complaints, spec: PodFields) -> None:
    given = spec.dns_config
    if spec.dns_policy == "None":
        if given is None:
            out.required("spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not given.nameservers:
            out.required(
                "spec.dnsConfig.nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None"
            )
    if given is not None:
        _dns_config(out, given)


def _dns_config(out: Complaints, given: DnsConfig) -> None:
    if len(given.nameservers) > MOST_SERVERS:
        detail = f"must not have more than {MOST_SERVERS} nameservers"
        out.invalid("spec.dnsConfig.nameservers", " ".join(given.nameservers), detail)
    for index, server in enumerate(given.nameservers):
        out.ip(f"spec.dnsConfig.nameservers[{index}]", server)
    if len(given.searches) > MOST_SEARCHES:
        detail = f"must not have more than {MOST_SEARCHES} search paths"
        out.invalid("spec.dnsConfig.searches", len(given.searches), detail)
    if len(" ".join(given.searches)) > MOST_SEARCH_LETTERS:
        detail = f"must not have more than {MOST_SEARCH_LETTERS} characters (including spaces) in the search list"
        out.invalid("spec.dnsConfig.searches", len(" ".join(given.searches)), detail)
    for index, search in enumerate(given.searches):
        name = search.removesuffix(".")
        if search != "." and (len(name) > LONGEST_SEARCH or not SEARCH.match(name)):
            detail = "must be a name of up to 253 characters, of lower case letters, digits, '-', '_' and '.'"
            out.invalid(f"spec.dnsConfig.searches[{index}]", search, detail)
    for index, option in enumerate(given.options):
        if not option.name:
            out.required(f"spec.dnsConfig.options[{index}]", "must not be empty")


def _host_names(out: Complaints, spec: PodFields) -> None:
    name = spec.hostname_override
    if name and len(name) > LONGEST_HOST_NAME:
        out.invalid("spec.hostnameOverride", name, f"must be no more than {LONGEST_HOST_NAME} characters")
    elif name:
        out.subdomain("spec.hostnameOverride", name)
    if name and spec.host_network:
        out.forbidden("spec.hostnameOverride", "may not be set together with `hostNetwork`")
    if name and spec.set_hostname_as_fqdn:
        out.forbidden("spec.hostnameOverride", "may not be set together with `setHostnameAsFQDN`")


def _host_aliases(out: Complaints, spec: PodFields) -> None:
    for index, alias in enumerate(spec.host_aliases):
        out.ip(f"spec.hostAliases[{index}].ip", alias.ip)
        for place, name in enumerate(alias.hostnames):
            out.subdomain(f"spec.hostAliases[{index}].hostnames[{place}]", name)


def _namespaces(out: Complaints, spec: PodFields) -> None:
    if spec.host_pid and spec.share_process_namespace:
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        out.invalid("spec.shareProcessNamespace", value=True, detail=detail)
    if not spec.host_users:
        for name, given in (("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)):
            if given:
                out.forbidden(f"spec.{name}", "when `hostUsers` is false")


def _security(out: Complaints, spec: PodFields, given: PodSecurityContext) -> None:
    path = "spec.securityContext"
    for name, value in (
        ("runAsUser", given.run_as_user),
        ("runAsGroup", given.run_as_group),
        ("fsGroup", given.fs_group),
    ):
        check_id(out, f"{path}.{name}", value)
    for index, group in enumerate(given.supplemental_groups):
        check_id(out, f"{path}.supplementalGroups[{index}]", group)
    if given.supplemental_groups_policy:
        out.one_of(f"{path}.supplementalGroupsPolicy", given.supplemental_groups_policy, ("Merge", "Strict"))
    if given.fs_group_change_policy:
        out.one_of(f"{path}.fsGroupChangePolicy", given.fs_group_change_policy, ("Always", "OnRootMismatch"))
    if given.se_linux_change_policy:
        out.one_of(f"{path}.seLinuxChangePolicy", given.se_linux_change_policy, ("MountOption", "Recursive"))
    names: set[str] = set()
    for index, sysctl in enumerate(given.sysctls):
        if not sysctl.name:
            out.required(f"{path}.sysctls[{index}].name")
        elif sysctl.name in names:
            out.duplicate(f"{path}.sysctls[{index}].name", sysctl.name)
        elif len(sysctl.name) > LONGEST_SYSCTL or not SYSCTL.match(sysctl.name):
            detail = (
                f"must have at most {LONGEST_SYSCTL} characters: names of lower case letters, digits, '-' and '_', "
            )
            out.invalid(f"{path}.sysctls[{index}].name", sysctl.name, detail + "parted by '.' or '/'")
        elif spec.host_ipc and IPC_SYSCTL.match(sysctl.name.replace("/", ".")):
            out.invalid(f"{path}.sysctls[{index}].name", sysctl.name, "may not be specified when 'hostIPC' is true")
        elif spec.host_network and sysctl.name.startswith("net."):
            out.invalid(f"{path}.sysctls[{index}].name", sysctl.name, "may not be specified when 'hostNetwork' is true")
        names.add(sysctl.name)
    check_profile(out, given.seccomp_profile, f"{path}.seccompProfile", is_file=True)
    check_profile(out, given.app_armor_profile, f"{path}.appArmorProfile")


def warnings_about(spec: PodFields) -> Iterator[tuple[str, str]]:
    grace_s = spec.termination_grace_period_seconds
    if grace_s == 0:
        yield "spec.terminationGracePeriodSeconds", "0 ends containers without hooks, order or time"
    if grace_s < 0:
        yield "spec.terminationGracePeriodSeconds", "a negative grace reads as 1 s"
    for place, one in enumerate(spec.init_containers):
        yield from _container_warnings(one, f"spec.initContainers[{place}]", grace_s)
        if one.is_sidecar and one.startup_probe is None:
            text = "a sidecar without startupProbe counts as started the moment it runs"
            yield f"spec.initContainers[{place}]", text
    for place, one in enumerate(spec.containers):
        yield from _container_warnings(one, f"spec.containers[{place}]", grace_s)


def _container_warnings(one: Container, path: str, grace_s: int) -> Iterator[tuple[str, str]]:
    hook = one.pre_stop
    if hook is not None and hook.sleep is not None and 0 < hook.sleep.seconds == grace_s:
        yield f"{path}.lifecycle.preStop.sleep", "takes the whole grace; after it there are 2 s"
    for name, given in (("postStart", one.post_start), ("preStop", hook)):
        if given is not None and given.tcp_socket is not None:
            yield f"{path}.lifecycle.{name}.tcpSocket", "such a hook always fails"
    for name, probe in (("livenessProbe", one.liveness_probe), ("startupProbe", one.startup_probe)):
        own_s = probe.termination_grace_period_seconds if probe is not None else None
        if own_s is not None and own_s > grace_s:
            yield f"{path}.{name}.terminationGracePeriodSeconds", f"{own_s} s is more than the pod's {grace_s} s"
    if one.image.startswith(f"{FORMER_REGISTRY}/"):
        yield f"{path}.image", f"{FORMER_REGISTRY} gets no new images; registry.k8s.io has them"
    yield from _doubled(f"{path}.env", [it.name for it in one.env], "the last one counts")
    ports = [f"{it.container_port}/{it.protocol}" for it in one.ports]
    yield from _doubled(f"{path}.ports", ports, "one of them says nothing")


def _doubled(path: str, names: Sequence[str], so: str) -> Iterator[tuple[str, str]]:
    for place, name in enumerate(names):
        if name in names[:place]:
            yield f"{path}[{place}]", f"{name} is also that of {path}[{names.index(name)}]; {so}"
