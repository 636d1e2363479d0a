# SPDX-License-Identifier: Apache-2.0
"""Where configuration comes from: file, drop-ins, environment, flags, in rising order of precedence."""

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agent.config.check import DEFAULT_ORIGIN, CheckedConfiguration, Layer, check_layers, flatten, former_form
from agent.config.document import COMES_WITH, PLANES, SWITCHES, Configuration
from agent.config.effective import HostFacts, fill_defaults
from agent.config.keys import KeyEntry, all_keys
from agent.config.strict_yaml import MAX_BYTES, Tree, UnreadableYaml, parse_documents
from agent.model.finding import Finding, shown, suggestion

DEFAULT_FILE = Path("/etc/kepd/config.yaml")
ENDINGS = (".yaml", ".yml")
ONCE_FOR_ALL = "config.d"
SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class Flag(msgspec.Struct, frozen=True):
    """A flag of its own name for one key, such as `-v`; its text is read as that of `--set`."""

    name: str
    path: str
    text: str


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a process was given. A `file` of None means the default file, which may be absent."""

    file: Path | None = None
    environment: Mapping[str, str]
    settings: Sequence[str] = ()
    flags: Sequence[Flag] = ()
    planes: str | None = None


def host_facts(environment: Mapping[str, str]) -> HostFacts:
    """A service manager may name several directories; the first is ours."""
    return HostFacts(
        host_name=socket.gethostname().lower(),
        state_directory=environment.get("STATE_DIRECTORY", "").partition(":")[0],
        run_directory=environment.get("RUNTIME_DIRECTORY", "").partition(":")[0],
        is_in_cluster=SERVICE_ACCOUNT_TOKEN.exists() and "KUBERNETES_SERVICE_HOST" in environment,
    )


class Loaded(msgspec.Struct, frozen=True):
    """`files` are those that were read; a later one overrides an earlier one. `warnings` do not stop kepd."""

    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]
    files: tuple[Path, ...] = ()
    warnings: tuple[Finding, ...] = ()


FurtherCheck = Callable[[Configuration, frozenset[str]], Sequence[Finding]]
"""Gets the keys that somebody gave too: some values are wrong beside others only where they are meant."""


def load(sources: Sources, facts: HostFacts, further: Sequence[FurtherCheck] = ()) -> CheckedConfiguration:
    """Read all sources and check them together; defaults that depend on the host are filled in."""
    return check(read(sources), facts, further=further)


def read(sources: Sources) -> Loaded:
    layers: list[Layer] = []
    findings: list[Finding] = []
    main = sources.file or DEFAULT_FILE
    warnings = list(_left_behind(main))
    files = [main] if _read_file(main, layers, findings, warnings, may_be_absent=sources.file is None) else []
    drop_ins = _drop_ins(drop_in_folder(main), findings)
    files += [path for path in drop_ins if _read_file(path, layers, findings, warnings)]
    layers.append(_environment_layer(sources.environment, findings))
    layers.append(_flag_layer(sources, findings))
    return Loaded(tuple(layers), tuple(findings), tuple(files), tuple(warnings))


def drop_in_folder(file: Path) -> Path:
    """Of `services.yaml` it is `services.d`: the daemons of a node have their files side by side, and what is meant for
    one would make another take its planes."""
    name = file.stem if file.suffix in ENDINGS else file.name
    return file.parent / f"{name}.d"


def _left_behind(main: Path) -> Iterator[Finding]:
    """Every file once took what is in `config.d` beside it. Who has made the folder of the file knows better."""
    old, own = main.parent / ONCE_FOR_ALL, drop_in_folder(main)
    if old != own and not os.path.lexists(own) and _drop_ins(old, []):
        text = f"is not read with {main} any more, and {own}, which is, does not exist"
        yield Finding(str(old), "", f"{text}; make it, and move there what is meant for this file")


def check(
    loaded: Loaded, facts: HostFacts, api_values: Mapping[str, str] | None = None, further: Sequence[FurtherCheck] = ()
) -> CheckedConfiguration:
    """What the sources said, with values set through the API on top. `further`: what planes know about values."""
    findings = list(loaded.findings)
    layers = [*loaded.layers, _api_layer(api_values or {}, findings)]
    checked = check_layers(layers, findings)
    if checked.configuration is None:
        return checked
    configuration = fill_defaults(checked.configuration, facts)
    given = frozenset(path for path, origin in checked.origins.items() if origin != DEFAULT_ORIGIN)
    found = [_placed(finding, checked.origins) for ask in further for finding in ask(configuration, given)]
    return CheckedConfiguration(None if found else configuration, tuple(found), checked.origins)


def _placed(finding: Finding, origins: Mapping[str, str]) -> Finding:
    """A plane names the key; where its value comes from is known here."""
    path = finding.path.partition("[")[0]
    where = next((origin for key, origin in origins.items() if key.startswith(path) and origin != DEFAULT_ORIGIN), "")
    return finding if finding.where else replace(finding, where=where)


def _drop_ins(folder: Path, findings: list[Finding]) -> list[Path]:
    try:
        names = [path for path in folder.iterdir() if path.suffix == ".yaml" and not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        findings.append(Finding(str(folder), "", f"cannot be read: {error.strerror}"))
        return []
    return sorted(names, key=lambda path: os.fsencode(path.name))


def _read_file(
    path: Path, layers: list[Layer], findings: list[Finding], warnings: list[Finding], *, may_be_absent: bool = False
) -> bool:
    """Whether it could be read, whatever is wrong with what it says."""
    try:
        documents, duplicates = parse_documents(_read_bounded(path), str(path))
    except FileNotFoundError as error:
        if not may_be_absent:
            findings.append(Finding(str(path), "", f"cannot be read: {error.strerror}"))
        return False
    except OSError as error:
        findings.append(Finding(str(path), "", f"cannot be read: {error.strerror}"))
        return False
    except UnreadableYaml as error:
        findings.append(error.finding)
        return False
    findings += duplicates
    if len(documents) > 1:
        findings.append(Finding(documents[1].where, "", "a second document; expected one per file"))
    for document in documents[:1]:
        layer, wrong = flatten(document, str(path))
        layers.append(layer)
        findings += wrong
        warnings += former_form(document)
    return True


def _read_bounded(path: Path) -> bytes:
    """A regular file, and of a huge one no more than shows that it is too large."""
    if path.exists() and not path.is_file():
        raise OSError(0, "is no regular file")
    with path.open("rb") as source:
        return source.read(MAX_BYTES + 1)


def _environment_layer(environment: Mapping[str, str], findings: list[Finding]) -> Layer:
    by_name = {entry.environment_name: entry for entry in all_keys(Configuration).values()}
    values: dict[str, Tree] = {}
    for name in sorted(environment):
        if not name.startswith("KEPD_") or "__" not in name:
            continue
        entry = by_name.get(name)
        if entry is None:
            findings.append(Finding(f"environment {name}", "", f"unknown variable{suggestion(name, by_name)}"))
        else:
            _put(entry, environment[name], f"environment {name}", values, findings)
    return values


def _flag_layer(sources: Sources, findings: list[Finding]) -> Layer:
    values: dict[str, Tree] = {}
    if sources.planes is not None:
        _put_planes(sources.planes, values, findings)
    for flag in sources.flags:
        _put_named(flag.path, flag.text, f"flag {flag.name}", values, findings)
    for setting in sources.settings:
        path, equals, text = setting.partition("=")
        if not equals:
            findings.append(Finding(f"flag --set {path}", "", "is not key=value"))
        else:
            _put_named(path, text, f"flag --set {path}", values, findings)
    return values


def _api_layer(api_values: Mapping[str, str], findings: list[Finding]) -> Layer:
    values: dict[str, Tree] = {}
    for path, text in api_values.items():
        _put_named(path, text, "api", values, findings)
    return values


def _put_named(path: str, text: str, where: str, values: dict[str, Tree], findings: list[Finding]) -> None:
    entry = all_keys(Configuration).get(path)
    if entry is None:
        findings.append(Finding(where, path, f"unknown key{suggestion(path, all_keys(Configuration))}"))
    else:
        _put(entry, text, where, values, findings)


def _put_planes(text: str, values: dict[str, Tree], findings: list[Finding]) -> None:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PLANES:
            hint = suggestion(name, PLANES) or f"; planes are {', '.join(PLANES)}"
            findings.append(Finding("flag --planes", "", f"{shown(name)} is no plane{hint}"))
    for plane in PLANES:
        switches = SWITCHES.get(plane, (f"{plane}.enabled",))
        for switch in switches[:1] if plane in names else switches:
            values[switch] = Tree("scalar", "flag --planes", bool({plane, COMES_WITH.get(plane)} & set(names)))


def _put(entry: KeyEntry, text: str, where: str, values: dict[str, Tree], findings: list[Finding]) -> None:
    """Text from outside YAML: taken as it is where the key holds text, else read as YAML (of which JSON is a part)."""
    if entry.key.kind.schema.get("type") == "string":
        values[entry.path] = Tree("scalar", where, text)
        return
    try:
        documents, duplicates = parse_documents(text, where)
    except UnreadableYaml as error:
        findings.append(Finding(where, entry.path, error.finding.text))
        return
    findings += duplicates
    tree = documents[0] if documents else Tree("scalar", where)
    tree.where = where
    values[entry.path] = tree


def telemetry_flags(
    verbosity: int | None, vmodule: str | None, log_format: str | None, metrics_compat: str | None
) -> list[Flag]:
    flags: list[Flag] = []
    if verbosity is not None:
        flags.append(Flag("-v", "telemetry.verbosity", str(verbosity)))
    if log_format is not None:
        flags.append(Flag("--log-format", "telemetry.logFormat", log_format))
    if metrics_compat is not None:
        names = [word.strip() for word in metrics_compat.split(",") if word.strip()]
        flags.append(Flag("--metrics-compat", "telemetry.metricsCompat", json.dumps(names)))
    if vmodule is not None:
        pairs = dict(term.partition("=")[::2] for term in vmodule.split(",") if term.strip())
        levels = {plane.strip(): int(level) if level.isdecimal() else level for plane, level in pairs.items()}
        flags.append(Flag("--vmodule", "telemetry.vmodule", json.dumps(levels)))
    return flags
