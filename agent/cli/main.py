# SPDX-License-Identifier: Apache-2.0
"""`kepctl`: ask and steer the daemon of this node.

A command's module, gRPC and rich are imported when it runs, which keeps `kepctl version` within its 120 ms.
"""

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from agent.cli.durations import Duration
from agent.model.exit_codes import FAILURE, INTERRUPTED, USAGE

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "apply": ("objects", "Put the objects of manifests into the manifest directory."),
    "api": ("api", "Call any method of the API with JSON."),
    "cancel": ("images", "Cancel a pull."),
    "checkpoint": ("pods", "Write a checkpoint of a running container to an archive."),
    "completion": ("completion", "Print the completion script of a shell."),
    "config": ("config", "Show, change, reload or check the configuration."),
    "diff": ("services", "Compare the rules in the kernel with those that should be there."),
    "cp": ("copying", "Copy files between here and a container."),
    "debug": ("streams", "Add a debug container to a running pod."),
    "create": ("making", "Create a ConfigMap, a Secret or objects from a file."),
    "delete": ("objects", "Remove objects from the manifests; pods stop with their hooks and order."),
    "describe": ("describe", "Show all details of a pod, workload, Service, claim or the node."),
    "doctor": ("node", "List what should be changed on this node, with the reason."),
    "drain": ("pods", "Stop all pods of this node, lowest priority first."),
    "attach": ("streams", "Show a container's output, and send it input."),
    "edit": ("making", "Change the manifest of an object in an editor."),
    "end": ("services", "End connections of a Service."),
    "exec": ("streams", "Run a command in a container."),
    "port-forward": ("streams", "Forward local ports to a pod."),
    "events": ("events", "List what happened on this node, to one object or to all."),
    "explain": ("explain", "Explain why a pod, pull, route, hint or name is as it is."),
    "flush": ("dns", "Forget answers to names."),
    "gc": ("images", "Remove unused images."),
    "get": ("get", "List objects."),
    "health": ("node", "Check that every part of the daemon is healthy."),
    "inspect": ("inspect", "Show one image in full."),
    "logs": ("logs", "Print the logs of containers, also of several pods."),
    "node-logs": ("node_logs", "Print logs of the node's services, from the journal or a file."),
    "plan": ("topology", "Compute what would happen, without doing it."),
    "prefetch": ("images", "Pull images in the background, before they are needed."),
    "pull": ("images", "Pull images under the node's limit."),
    "release": ("claims", "Let go on what is held, or forget the record of a claim."),
    "reset": ("claims", "Reset a device that is in quarantine."),
    "restart": ("pods", "Stop containers with grace and start them again."),
    "restore": ("restoring", "Run a pod whose container begins from a checkpoint."),
    "retry": ("images", "Clear a back-off and retry at once."),
    "run": ("making", "Run an image as a pod."),
    "rollout": ("rollout", "Follow a change of a Deployment or DaemonSet, or make its pods anew."),
    "scale": ("rollout", "Write another number of pods into a Deployment's manifest."),
    "rules": ("services", "List the rules of Services."),
    "set": ("images", "Change limits."),
    "status": ("node", "Show the node and its planes at a glance."),
    "trace": ("services", "Follow a connection through the rules."),
    "stats": ("top", "Show every figure of a pod as the kernel has it."),
    "top": ("top", "Show what the node, its pods or its containers use now."),
    "timeline": ("pods", "Draw what happened to a pod."),
    "ui": ("ui", "Show pods, pulls, Services and events as they change, over the whole terminal."),
    "uncordon": ("pods", "Allow pods again and restart drained ones."),
    "validate": ("objects", "Check manifests without a daemon."),
    "wait": ("wait", "Wait until pods are ready, gone, or as a path of them says."),
    "version": ("version", "Print the version of this program, and optionally of the daemon."),
})  # fmt: skip
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "images": ("get", "images"),
    "node": ("get", "nodes"),
    "pods": ("get", "pods"),
    "ps": ("get", "containers"),
})  # fmt: skip


# Commands, also in groups, whose objects are in a namespace; `get`, `apply` and `delete` have an option of their own.
IN_NAMESPACE = frozenset({
    "attach", "checkpoint", "cp", "debug", "describe", "end", "events", "exec", "explain", "logs", "port-forward",
    "restart", "retry", "rules", "timeline", "wait",
})  # fmt: skip
COMMON_WITH_VALUE = frozenset({"--endpoint", "--timeout", "--color"})
COMMON_ALONE = frozenset({"--debug"})
LONGEST_TIMEOUT_S = 86400
# A stream that takes nothing any more would hold its end up for ever.
UNWIND_S = 5


class LazyCommands(click.Group):
    """Commands by name, loaded when they run; the summary needs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module = importlib.import_module(f"agent.cli.commands.{place[0]}")
        name = cmd_name.replace("-", "_")
        # `exec` is a word of Python's.
        command: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")
        from agent.cli.common_options import offer_names, take_namespace

        if cmd_name in IN_NAMESPACE:
            take_namespace(command)
        offer_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in ALIASES:
            args = [*ALIASES[args[0]], *args[1:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], [*COMMANDS, *ALIASES], n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "; see kepctl --help"
            raise click.UsageError(f'no command "{args[0]}"{hint}', ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Of the first word nothing need be imported."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, text) for name, (_, text) in sorted(COMMANDS.items()) if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in found]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


def _sane_timeout(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if not 0 < value <= LONGEST_TIMEOUT_S:
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0 and up to {LONGEST_TIMEOUT_S}")
    return value


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--endpoint", metavar="SOCKET", help="API socket [$KEPD_ENDPOINT, else /run/kepd/kepd.sock].")
@click.option(
    "--timeout", "timeout_s", type=Duration(takes_number=True), default=10.0, show_default=True,
    callback=_sane_timeout, help="Longest wait for an answer, in seconds or as 1m30s.",
)  # fmt: skip
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to use colours.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.pass_context
def cli(ctx: click.Context, endpoint: str | None, timeout_s: float, color: str, *, debug: bool) -> None:
    """Query and control the kepd of this node."""
    from agent.cli.session import Session

    ctx.obj = Session(endpoint=endpoint, timeout_s=timeout_s, color=color, debug=debug)


def _hoisted(arguments: Sequence[str]) -> list[str]:
    """Common flags may stand anywhere before `--`; click wants them first."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name = word.partition("=")[0]
        if word == "--":
            rest += [word, *words]
        elif name in COMMON_WITH_VALUE:
            # Without its value it stays at the end, where click says that it needs one.
            value = "" if "=" in word else next(words, None)
            front += [word] if "=" in word else [word, value] if value is not None else []
            rest += [word] if value is None else []
        elif name in COMMON_ALONE:
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def main() -> None:
    """Entry point: every way to fail has its exit code and one line on standard error."""
    from agent.cli.session import CommandFailed
    from agent.cli.terminal import clean_streams

    clean_streams()
    signal.signal(signal.SIGINT, _interrupted)
    try:
        status = cli.main(_hoisted(sys.argv[1:]), "kepctl", standalone_mode=False)
    except CommandFailed as error:
        if "--debug" in sys.argv:
            raise
        click.echo(f"kepctl: {error}", err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        error.show()
        sys.exit(USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _leave()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILURE)
    except OSError as error:
        # What has no name is the output.
        what = error.filename if error.filename is not None else "the output cannot be written"
        click.echo(f"kepctl: {what}: {error.strerror}", err=True)
        sys.exit(FAILURE)
    sys.exit(_flushed(status if isinstance(status, int) else 0))


def _interrupted(*_: object) -> NoReturn:
    """The first one unwinds, for so long at most, and who is impatient need not wait for that."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGALRM, _leave)
    signal.alarm(UNWIND_S)
    raise KeyboardInterrupt


def _leave(*_: object) -> NoReturn:
    """Without the interpreter's own end: what a second interrupt left of gRPC may wait there for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    os._exit(INTERRUPTED)


def _flushed(status: int) -> int:
    """What is still buffered may fail to be written; better said here than by the interpreter."""
    try:
        sys.stdout.flush()
    except OSError as error:
        click.echo(f"kepctl: the output cannot be written: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    return status


if __name__ == "__main__":
    main()
