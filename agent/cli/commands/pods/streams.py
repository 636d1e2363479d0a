# SPDX-License-Identifier: Apache-2.0
"""`kepctl exec`, `attach`, `debug` and `port-forward`: streams between here and a container."""

import asyncio
import sys
from contextlib import suppress
from typing import BinaryIO

import click

from agent.cli.client import connected
from agent.cli.commands.pods.pods import SERVICE, patient
from agent.cli.objects.pod_names import find_container, find_pod
from agent.cli.session import CommandFailed, Session
from agent.cli.streams.running import run_until_interrupted
from agent.wire.kepd.v1 import pod_pb2

PROFILES = ("general", "baseline", "restricted", "netadmin", "sysadmin")


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="POD[/CONTAINER]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", default="", help="Name of the container; not needed if the pod has only one.")
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Send standard input to the command.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give the command a terminal.")
@click.pass_obj
def exec_(
    session: Session, target: str, command: tuple[str, ...], container: str, *, has_stdin: bool, is_tty: bool
) -> None:
    """Run a command in a container. kepctl exits with its exit code, and ends the command when it is interrupted. Put
    `--` before the command.
    """
    from agent.cli.streams.remote_streams import run_streams

    with connected(session) as daemon:
        namespace, name, named = find_container(daemon, target)
        chosen = container or named
        end = pod_pb2.EndExecRequest(namespace=namespace, name=name, container=chosen, command=command)
        end.since.GetCurrentTime()
        request = pod_pb2.GetExecUrlRequest(
            namespace=namespace, name=name, container=chosen, command=command, stdin=has_stdin, tty=is_tty
        )
        url = daemon.call(f"{SERVICE}/GetExecUrl", request, pod_pb2.GetExecUrlResponse).url
        try:
            code = run_until_interrupted(run_streams(url, has_stdin=has_stdin, is_tty=is_tty))
        except KeyboardInterrupt:
            with suppress(CommandFailed):
                daemon.call(f"{SERVICE}/EndExec", end, pod_pb2.EndExecResponse)
            raise
    sys.exit(code)


@click.command()
@click.argument("target", metavar="POD[/CONTAINER]")
@click.option("-c", "--container", default="", help="Name of the container; not needed if the pod has only one.")
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Send standard input to the container.")
@click.pass_obj
def attach(session: Session, target: str, container: str, *, has_stdin: bool) -> None:
    """Show what a container writes from now on, and send it input with -i. Ctrl-C leaves it running.

    The runtime keeps no output for those who come later: what was written before the line `attached to …` is in `kepctl
    logs`, and nowhere else.
    """
    from agent.cli.streams.remote_streams import run_streams

    with connected(session) as daemon:
        namespace, name, named = find_container(daemon, target)
        chosen = container or named
        request = pod_pb2.GetAttachUrlRequest(namespace=namespace, name=name, container=chosen, stdin=has_stdin)
        answer = daemon.call(f"{SERVICE}/GetAttachUrl", request, pod_pb2.GetAttachUrlResponse)
    greeting = f"attached to {name}{f'/{chosen}' if chosen else ''}; what it wrote before is in its log"
    sys.exit(run_until_interrupted(run_streams(answer.url, has_stdin=has_stdin, is_tty=answer.tty, greeting=greeting)))


@click.command()
@click.argument("pod", metavar="POD")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--image", required=True, help="Image of the new container.")
@click.option("--target", default="", help="Container whose processes the new one sees.")
@click.option("--profile", type=click.Choice(PROFILES), default=PROFILES[0], help="Its rights, as kubectl names them.")
@click.option("--custom", type=click.File("rb"), help="JSON or YAML: fields of the container, over its profile.")
@click.option(
    "--name", "container", default="", help="Name of the new container [debugger- and five random characters]."
)
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Attach, and send standard input to the container.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Attach, and give the container a terminal.")
@click.pass_obj
def debug(
    session: Session, pod: str, image: str, container: str, *, command: tuple[str, ...], target: str, profile: str,
    custom: BinaryIO | None, has_stdin: bool, is_tty: bool,
) -> None:  # fmt: skip
    """Run an ephemeral container inside a pod that runs. Put `--` before a command that replaces the image's own.

    It joins the pod's network, runs once, is never restarted, and ends with the pod. The manifest does not change.
    """
    with connected(patient(session)) as daemon:
        namespace, name = find_pod(daemon, pod)
        request = pod_pb2.DebugPodRequest(
            namespace=namespace, name=name, container=container, image=image, command=command, target=target,
            profile=profile, stdin=has_stdin, tty=is_tty, custom=custom.read() if custom is not None else b"",
        )  # fmt: skip
        made = daemon.call(f"{SERVICE}/DebugPod", request, pod_pb2.DebugPodResponse).container
    click.echo(made, err=has_stdin or is_tty)
    place = f"{namespace}/{name}/{made}"
    if has_stdin or is_tty:
        click.get_current_context().invoke(attach, target=place, has_stdin=has_stdin)
    click.echo(f"kepctl: see `kepctl logs {place}`, or join it with `kepctl attach {place}`", err=True)


@click.command("port-forward")
@click.argument("target", metavar="POD|svc/NAME")
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT…")
@click.option("--address", default="127.0.0.1", help="Address to listen on [127.0.0.1].")
@click.pass_obj
def port_forward(session: Session, target: str, ports: tuple[str, ...], address: str) -> None:
    """Forward local ports to a pod, or to one pod behind a Service, until Ctrl-C. LOCAL 0 or empty: any free port.

    A PORT may be the name of one, of the pod's containers or of the Service; of a Service its number is that of the
    Service.
    """
    from agent.cli.streams.forward_targets import found_target
    from agent.cli.streams.remote_ports import forward

    with connected(session) as daemon:
        namespace, name, pairs = found_target(daemon, target, ports)

        def url_of(port: int) -> str:
            request = pod_pb2.GetPortForwardUrlRequest(namespace=namespace, name=name, ports=[port])
            return daemon.call(f"{SERVICE}/GetPortForwardUrl", request, pod_pb2.GetPortForwardUrlResponse).url

        # Whatever is wrong with the pod is told before anybody connects.
        url_of(pairs[0][1])
        run_until_interrupted(forward(pairs, address, lambda port: asyncio.to_thread(url_of, port), click.echo))
