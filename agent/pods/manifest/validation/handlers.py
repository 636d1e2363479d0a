# SPDX-License-Identifier: Apache-2.0
"""Hooks and probes: what a manifest may say of them."""

import re

from agent.model.pods.container_fields import Container, GrpcCheck, Hook, HttpGet, Port, Probe, TcpSocket
from agent.model.pods.http_question import has_control
from agent.pods.manifest.validation.complaint import Complaints

PORT_NAME = re.compile(r"(?=.{1,15}\Z)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*\Z")
HEADER_NAME = re.compile(r"[-A-Za-z0-9!#$%&'*+.^_`|~]+\Z")
HIGHEST_PORT = 65535
SIDECARS_ONLY = "may not be set for init containers without restartPolicy=Always"
PORT_RANGE = "must be between 1 and 65535, inclusive"
BASE_SIGNALS = (
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
    "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
    "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
)  # fmt: skip
REAL_TIME = ("RTMIN", *(f"RTMIN+{i}" for i in range(1, 16)), *(f"RTMAX-{i}" for i in range(14, 0, -1)), "RTMAX")
SIGNALS = frozenset(f"SIG{name}" for name in (*BASE_SIGNALS, *REAL_TIME))
HANDLERS = {"exec": "exec", "http_get": "httpGet", "tcp_socket": "tcpSocket", "grpc": "grpc", "sleep": "sleep"}
NUMBERS = {
    "initial_delay_seconds": "initialDelaySeconds",
    "timeout_seconds": "timeoutSeconds",
    "period_seconds": "periodSeconds",
    "success_threshold": "successThreshold",
    "failure_threshold": "failureThreshold",
}


def check_lifecycle(
    out: Complaints, container: Container, path: str, grace_s: int, *, may_have: bool, os_name: str
) -> None:
    """`may_have` is false of init containers that are no sidecars."""
    lifecycle, path = container.lifecycle, f"{path}.lifecycle"
    if lifecycle is None:
        return
    if not may_have:
        out.forbidden(path, SIDECARS_ONLY)
        return
    for name, hook in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if hook is not None:
            _hook(out, hook, f"{path}.{name}", grace_s)
    if lifecycle.stop_signal:
        if not os_name:
            out.forbidden(f"{path}.stopSignal", "may not be set for containers with empty `spec.os.name`")
        elif lifecycle.stop_signal not in SIGNALS:
            out.one_of(f"{path}.stopSignal", lifecycle.stop_signal, sorted(SIGNALS))


def _hook(out: Complaints, hook: Hook, path: str, grace_s: int) -> None:
    _handler(out, hook, path, "may not specify more than 1 handler type")
    if hook.sleep is not None and not 0 <= hook.sleep.seconds <= grace_s:
        text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
        out.invalid(f"{path}.sleep", hook.sleep.seconds, text)


def _handler(out: Complaints, handler: Hook | Probe, path: str, many: str) -> None:
    given = [name for name in HANDLERS if getattr(handler, name, None) is not None]
    out.one_type(path, [HANDLERS[name] for name in given], "must specify a handler type", many)
    for name in given[:1]:
        _check_one(out, getattr(handler, name), f"{path}.{HANDLERS[name]}")
    if handler.exec is not None and not handler.exec.command:
        out.required(f"{path}.exec.command")


def _check_one(out: Complaints, given: object, path: str) -> None:
    match given:
        case HttpGet():
            _port(out, given.port, f"{path}.port")
            out.one_of(f"{path}.scheme", given.scheme, ("HTTP", "HTTPS"))
            values = [(f"httpHeaders[{index}].value", one.value) for index, one in enumerate(given.http_headers)]
            for name, text in (("path", given.path), ("host", given.host), *values):
                if has_control(text):
                    out.invalid(f"{path}.{name}", text, "must not contain control characters, such as a line break")
            for index, header in enumerate(given.http_headers):
                if not HEADER_NAME.match(header.name):
                    detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name')"
                    out.invalid(f"{path}.httpHeaders[{index}].name", header.name, detail)
        case TcpSocket():
            _port(out, given.port, f"{path}.port")
        case GrpcCheck():
            if isinstance(given.port, str):
                out.invalid(f"{path}.port", given.port, "must be a number; a gRPC port has no name")
            else:
                _port(out, given.port, f"{path}.port")


def _port(out: Complaints, port: Port, path: str) -> None:
    if isinstance(port, int):
        if not 1 <= port <= HIGHEST_PORT:
            out.invalid(path, port, PORT_RANGE)
    elif not PORT_NAME.match(port):
        detail = "must be the name of a port: at most 15 of a-z, 0-9 and -, with at least one letter"
        out.invalid(path, port, detail)


def check_probes(out: Complaints, container: Container, path: str, *, may_have: bool) -> None:
    listed = (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    )
    for name, probe in listed:
        if probe is not None and may_have:
            _probe(out, probe, name, f"{path}.{name}")
        elif probe is not None:
            out.forbidden(f"{path}.{name}", SIDECARS_ONLY)


def _probe(out: Complaints, probe: Probe, name: str, path: str) -> None:
    _handler(out, probe, path, "may not specify more than 1 handler type")
    for attribute, key in NUMBERS.items():
        out.at_least(f"{path}.{key}", getattr(probe, attribute), 0)
    is_readiness = name == "readinessProbe"
    if not is_readiness and probe.success_threshold > 1:
        out.invalid(f"{path}.successThreshold", probe.success_threshold, "must be 1")
    grace_s = probe.termination_grace_period_seconds
    if grace_s is not None and is_readiness:
        out.invalid(f"{path}.terminationGracePeriodSeconds", grace_s, "must not be set for readinessProbes")
    else:
        out.at_least(f"{path}.terminationGracePeriodSeconds", grace_s, 1, "must be greater than 0")
