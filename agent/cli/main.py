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
    "annotate": ("objects.patching", "Set annotations of an object in its manifest."),
    "apply": ("objects.objects", "Put the objects of manifests into the manifest directory."),
    "api-resources": ("objects.resources", "List the kinds of objects, with their short names."),
    "api": ("node.api", "Call any method of the API with JSON."),
    "cancel": ("planes.images", "Cancel a pull."),
    "checkpoint": ("pods.pods", "Write a checkpoint of a running container to an archive."),
    "completion": ("node.completion", "Print the completion script of a shell."),
    "config": ("node.config", "Show, change, reload or check the configuration."),
    "diff": ("planes.services", "Compare the rules in the kernel with those that should be there."),
    "cp": ("pods.copying", "Copy files between here and a container."),
    "debug": ("pods.streams", "Add a debug container to a running pod."),
    "create": ("objects.create", "Create a ConfigMap, a Secret or objects from a file."),
    "delete": ("objects.objects", "Remove objects from the manifests; pods stop with their hooks and order."),
    "describe": ("objects.describe", "Show all details of a pod, workload, Service, claim or the node."),
    "doctor": ("node.node", "List what should be changed on this node, with the reason."),
    "drain": ("pods.pods", "Stop all pods of this node, lowest priority first."),
    "attach": ("pods.streams", "Show a container's output, and send it input."),
    "edit": ("objects.create", "Change the manifest of an object in an editor."),
    "end": ("planes.services", "End connections of a Service."),
    "exec": ("pods.streams", "Run a command in a container."),
    "port-forward": ("pods.streams", "Forward local ports to a pod."),
    "events": ("node.events", "List what happened on this node, to one object or to all."),
    "expose": ("objects.making", "Make a Service for a Deployment, DaemonSet or pod."),
    "explain": ("objects.explain", "Explain why a pod, pull, route, hint or name is as it is."),
    "flush": ("node.dns", "Forget answers to names."),
    "gc": ("planes.images", "Remove unused images."),
    "get": ("objects.get", "List objects."),
    "health": ("node.node", "Check that every part of the daemon is healthy."),
    "inspect": ("planes.inspect", "Show one image in full."),
    "label": ("objects.patching", "Set labels of an object in its manifest."),
    "logs": ("pods.logs", "Print the logs of containers, also of several pods."),
    "node-logs": ("node.node_logs", "Print logs of the node's services, from the journal or a file."),
    "patch": ("objects.patching", "Change fields of an object in its manifest."),
    "plan": ("planes.topology", "Compute what would happen, without doing it."),
    "prefetch": ("planes.images", "Pull images in the background, before they are needed."),
    "pull": ("planes.images", "Pull images under the node's limit."),
    "release": ("planes.claims", "Let go on what is held, or forget the record of a claim."),
    "reset": ("planes.claims", "Reset a device that is in quarantine."),
    "restart": ("pods.pods", "Stop containers with grace and start them again."),
    "restore": ("pods.restoring", "Run a pod whose container begins from a checkpoint."),
    "retry": ("planes.images", "Clear a back-off and retry at once."),
    "run": ("objects.create", "Run an image as a pod."),
    "rollout": ("objects.rollout", "Follow, hold or undo the change of a workload, or make its pods anew."),
    "scale": ("objects.rollout", "Write another number of pods into a Deployment's manifest."),
    "rules": ("planes.services", "List the rules of Services."),
    "set": ("planes.images", "Change limits."),
    "status": ("node.node", "Show the node and its planes at a glance."),
    "trace": ("planes.services", "Follow a connection through the rules."),
    "stats": ("node.top", "Show every figure of a pod as the kernel has it."),
    "top": ("node.top", "Show what the node, its pods or its containers use now."),
    "timeline": ("pods.pods", "Draw what happened to a pod."),
    "ui": ("node.ui", "Show pods, pulls, Services and events as they change, over the whole terminal."),
    "cordon": ("pods.pods", "Let no pod start; those that run go on."),
    "uncordon": ("pods.pods", "Allow pods again and restart drained ones."),
    "validate": ("objects.objects", "Check manifests without a daemon."),
    "what-if": ("packaged", "Tell what a change of a cluster would do, before it is made."),
    "wait": ("objects.wait", "Wait until pods are ready, gone, or as a path of them says."),
    "kubeconfig": ("node.kubeconfig", "Print a kubeconfig for kubectl and other clients."),
    "version": ("node.version", "Print the version of this program, and optionally of the daemon."),
})  # fmt: skip
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "images": ("get", "images"),
    "node": ("get", "nodes"),
    "pods": ("get", "pods"),
    "ps": ("get", "containers"),
})  # fmt: skip


# Commands, also in groups, whose objects are in a namespace; `get`, `apply` and `delete` have an option of their own.
IN_NAMESPACE = frozenset({
    "annotate", "attach", "checkpoint", "cp", "debug", "describe", "end", "events", "exec", "explain", "label", "logs",
    "patch", "port-forward", "restart", "retry", "rules", "timeline", "wait",
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
        _show_examples(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if args[0] in ALIASES:
            args = [*ALIASES[args[0]], *args[1:]]
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f'no command "{args[0]}"{_instead(args[0])}', ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Of the first word nothing need be imported."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, text) for name, (_, text) in sorted(COMMANDS.items()) if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in found]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        from agent.cli.texts.examples import GROUPS

        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])
        formatter.write_paragraph()
        formatter.write_text("kepctl help COMMAND shows a command with examples.")


def _show_examples(command: click.Command) -> None:
    """Below a command's help, and those of a group; their texts are read only there."""
    command.format_epilog = _write_examples  # type: ignore[method-assign]
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _show_examples(inner)


def _write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    from agent.cli.texts.examples import examples_of

    if found := examples_of(ctx.command_path):
        with formatter.section("Examples"):
            for line in found:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _instead(word: str) -> str:
    """What other programs call so first: the nearest word may mean something else."""
    from agent.cli.objects.foreign import COMMANDS as FOREIGN
    from agent.cli.objects.foreign import KINDS, in_place_of
    from agent.kinds.registry import BY_WORD
    from agent.kinds.selection import nearest

    if text := in_place_of(word, FOREIGN):
        return text
    if kind := BY_WORD.get(word.lower()):
        return f"; it is a kind: kepctl get {kind.plural}"
    close = nearest(word, (*COMMANDS, *ALIASES))
    return in_place_of(word, KINDS) or (f'; did you mean "{close}"?' if close else "; see kepctl --help")


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
    from agent.model.refused import Refused

    clean_streams()
    signal.signal(signal.SIGINT, _interrupted)
    try:
        status = cli.main(_hoisted(sys.argv[1:]), "kepctl", standalone_mode=False)
    except CommandFailed as error:
        if "--debug" in sys.argv:
            raise
        click.echo(f"kepctl: {error}", err=True)
        sys.exit(error.exit_code)
    except Refused as error:
        click.echo(f"kepctl: {error}", err=True)
        sys.exit(USAGE)
    except click.UsageError as error:
        _name_flag(error)
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


def _name_flag(error: click.UsageError) -> None:
    """A flag of another program, with what serves in its place."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from agent.cli.objects.foreign import in_place_of_flag

        if text := in_place_of_flag(error.option_name, error.ctx.command_path.partition(" ")[2]):
            error.message, error.possibilities = f"no option {error.option_name}{text}", None  # type: ignore[misc]


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
