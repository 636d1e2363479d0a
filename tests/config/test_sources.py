# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.config.check import CheckedConfiguration
from agent.config.document import Configuration
from agent.config.effective import HostFacts
from agent.config.reference import as_document, as_yaml
from agent.config.sources import Flag, Sources, check, host_facts, load, read

MIGRATE = [str(Path(sys.executable).parent / "kepd"), "config", "migrate"]
FACTS = HostFacts(host_name="node-1")
HEAD = "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"


def loaded(tmp_path: Path, text: str | bytes, **given: object) -> CheckedConfiguration:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else (HEAD + text).encode())
    return load(Sources(file=path, environment={}, **given), FACTS)  # type: ignore[arg-type]


def complaints(checked: CheckedConfiguration, tmp_path: Path) -> list[str]:
    return [str(finding).replace(f"{tmp_path}/", "") for finding in checked.findings]


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FH-5: without a file the default place is read, where this machine may have one."""
    monkeypatch.setattr("agent.config.sources.DEFAULT_FILE", tmp_path / "none.yaml")


def test_without_any_source_everything_has_a_default_that_works() -> None:
    checked = load(Sources(file=None, environment={}), FACTS)

    assert checked.configuration is not None
    assert checked.configuration.node.name == "node-1"
    assert checked.configuration.api.socket == "/run/kepd/kepd.sock"
    assert checked.configuration.services.source == "manifests"
    assert set(checked.origins.values()) == {"default"}


def test_flag_beats_environment_beats_drop_in_beats_file(tmp_path: Path) -> None:
    """CFG-01: and every value remembers where it comes from."""
    drop_ins = tmp_path / "config.d"
    drop_ins.mkdir()
    (drop_ins / "20-b.yaml").write_text(HEAD + "images: {maxParallelPulls: 3}\npods: {relist: 20s}\n")
    (drop_ins / "10-a.yaml").write_text(HEAD + "images: {maxParallelPulls: 2}\npods: {relist: 10s}\n")
    (drop_ins / "notes.txt").write_text("not configuration")
    checked = loaded(tmp_path, "images: {maxParallelPulls: 1}\napi: {readGroup: ops}\npods: {relist: 5s}\n")
    path = tmp_path / "config.yaml"
    everything = Sources(
        file=path,
        environment={"KEPD_IMAGES__MAX_PARALLEL_PULLS": "4", "KEPD_TELEMETRY__VERBOSITY": "3", "KEPD_ENDPOINT": "/x"},
        settings=["images.maxParallelPulls=5"],
        flags=[Flag("-v", "telemetry.verbosity", "6")],
    )
    most = load(everything, FACTS)

    assert checked.configuration is not None
    assert most.configuration is not None
    assert checked.configuration.images.max_parallel_pulls == 3
    assert checked.configuration.pods.relist == 20.0
    assert most.configuration.images.max_parallel_pulls == 5
    assert most.configuration.telemetry.verbosity == 6
    assert most.origins["images.maxParallelPulls"] == "flag --set images.maxParallelPulls"
    assert most.origins["api.readGroup"] == f"{path}:4"
    assert most.origins["pods.relist"] == f"{drop_ins}/20-b.yaml:4"
    assert most.origins["telemetry.verbosity"] == "flag -v"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("config.yaml", "config.d"), ("services.yaml", "services.d"), ("cri.yml", "cri.d"), ("own.conf", "own.conf.d")],
)
def test_drop_ins_belong_to_the_file_they_stand_beside(tmp_path: Path, name: str, folder: str) -> None:
    """CL-3: what is meant for one daemon made another take its planes."""
    for place in ("config.d", "services.d", "cri.d", "own.d", "own.conf.d"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.yaml").write_text(HEAD + f"node: {{labels: {{{place}: read}}}}\n")
    (tmp_path / name).write_text(HEAD)
    found = read(Sources(file=tmp_path / name, environment={}))
    configuration = check(found, FACTS).configuration

    assert configuration is not None
    assert configuration.node.labels == {folder: "read"}
    assert found.files == (tmp_path / name, tmp_path / folder / "a.yaml")
    assert not found.warnings


def test_a_folder_that_is_no_longer_read_is_named_with_the_one_that_is(tmp_path: Path) -> None:
    """CL-3: until the file has a folder of its own; where there is nothing to move, nothing is said."""
    file, old = tmp_path / "services.yaml", tmp_path / "config.d"
    file.write_text(HEAD)
    sources = Sources(file=file, environment={})
    old.mkdir()
    (old / "notes.txt").write_text("no drop-in")
    of_none = read(sources).warnings
    (old / "a.yaml").write_text("[")
    of_one = read(sources)
    of_its_owner = read(Sources(file=tmp_path / "config.yaml", environment={})).warnings
    (tmp_path / "services.d").mkdir()

    (told,) = of_one.warnings
    assert str(told) == (
        f"{old}: is not read with {file} any more, and {tmp_path}/services.d, which is, does not exist; make it, and "
        "move there what is meant for this file"
    )
    assert not of_one.findings
    assert (of_none, of_its_owner, read(sources).warnings) == ((), (), ())


def test_a_file_of_a_former_version_is_read_and_told_of_and_is_migrated_with_its_comments(tmp_path: Path) -> None:
    main, drop_in = tmp_path / "config.yaml", tmp_path / "config.d/a.yaml"
    drop_in.parent.mkdir()
    former = HEAD.replace("v1beta1", "v1alpha1")
    main.write_text("# mine\n" + former + "node: {name: n1}  # ours\n")
    drop_in.write_text(former)
    drop_in.chmod(0o640)
    found = read(Sources(file=main, environment={}))
    first, again = (subprocess.run([*MIGRATE, str(main)], capture_output=True, text=True, check=True) for _ in range(2))

    assert not found.findings
    assert [str(one) for one in found.warnings] == [
        f"{path}:{line}: apiVersion: config.kepd.dev/v1alpha1 is a former version and is still read; "
        "`kepd config migrate` writes config.kepd.dev/v1beta1"
        for path, line in ((main, 2), (drop_in, 1))
    ]
    assert first.stdout == f"wrote {main}\nwrote {drop_in}\n"
    assert again.stdout == "all files are of this version\n"
    assert main.read_text() == "# mine\n" + HEAD + "node: {name: n1}  # ours\n"
    assert (drop_in.read_text(), drop_in.stat().st_mode & 0o777) == (HEAD, 0o640)
    assert not read(Sources(file=main, environment={})).warnings


def test_a_file_that_is_not_there_has_not_been_read(tmp_path: Path) -> None:
    assert read(Sources(file=None, environment={})).files == ()
    assert read(Sources(file=tmp_path / "lost.yaml", environment={})).files == ()
    assert read(Sources(file=Path("/"), environment={})).files == ()


def test_maps_merge_and_lists_replace(tmp_path: Path) -> None:
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "x.yaml").write_text(HEAD + "node: {labels: {b: '2'}, addresses: [10.0.0.2]}\n")
    checked = loaded(tmp_path, "node: {labels: {a: '1'}, addresses: [10.0.0.1]}\n")

    assert checked.configuration is not None
    assert checked.configuration.node.labels == {"a": "1", "b": "2"}
    assert checked.configuration.node.addresses == ("10.0.0.2",)


def test_all_complaints_come_at_once_with_line_path_and_suggestion(tmp_path: Path) -> None:
    """CFG-02, CFG-04: nobody should have to fix one error to see the next."""
    text = (
        "images:\n  maxParalelPulls: 5\n  enabled: no\npods: 3\nimagess: {}\n"
        "services: {backend: ipvs, hints: {overloadThreshold: 2}}\nruntime: {requestTimeout: 10}\nnode: {name: }\n"
    )
    checked = loaded(tmp_path, text, settings=["proxy.enabeld=true", "noequals"], planes="pods,imags")

    assert complaints(checked, tmp_path) == [
        'config.yaml:4: images.maxParalelPulls: unknown key; did you mean "maxParallelPulls"?',
        "config.yaml:6: pods: 3 is not a map of keys",
        'config.yaml:7: imagess: unknown section; did you mean "images"?',
        "flag --planes: 'imags' is no plane; did you mean \"images\"?",
        'flag --set proxy.enabeld: proxy.enabeld: unknown key; did you mean "proxy.enabled"?',
        "flag --set noequals: is not key=value",
        "config.yaml:5: images.enabled: 'no' is not true or false, and not \"auto\"",
        "config.yaml:8: services.backend: 'ipvs' is not one of nftables, iptables",
        "config.yaml:8: services.hints.overloadThreshold: 2 is not a number from 0 to 1",
        'config.yaml:9: runtime.requestTimeout: 10 is not a duration with a unit, such as "10s" or "1m30s"',
        "config.yaml:10: node.name: has no value; set one, or remove the key",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: KepdConfiguration\n", "apiVersion: missing"),
        ("apiVersion: config.kepd.dev/v2\nkind: KepdConfiguration\n", "'config.kepd.dev/v2' is not"),
        ("- a\n- b\n", "is not a KepdConfiguration document"),
        (HEAD + "---\n" + HEAD, "a second document"),
        (HEAD + "node: {name: a}\nnode: {name: b}\n", "occurs again"),
        (HEAD + "<<: {a: b}\n", "unknown section"),
    ],
)
def test_documents_of_the_wrong_outline_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    checked = loaded(tmp_path, text.encode())

    assert checked.configuration is None
    assert complaint in "\n".join(complaints(checked, tmp_path))


def test_a_file_that_was_named_must_be_readable(tmp_path: Path) -> None:
    checked = load(Sources(file=tmp_path / "none.yaml", environment={}), FACTS)

    assert complaints(checked, tmp_path) == ["none.yaml: cannot be read: No such file or directory"]


def test_an_unknown_variable_is_an_error_with_a_suggestion() -> None:
    checked = load(Sources(environment={"KEPD_IMAGES__MAX_PARALEL_PULLS": "4"}), FACTS)

    assert 'did you mean "KEPD_IMAGES__MAX_PARALLEL_PULLS"?' in str(checked.findings[0])


def test_values_that_cannot_work_are_refused(tmp_path: Path) -> None:
    settings = ["manifests.directory=", "runtime.endpoint=", "pods.cgroupRoot=", "api.readGroup=99999999999"]
    checked = load(Sources(environment={}, settings=settings), FACTS)

    assert [finding.path for finding in checked.findings] == [setting.partition("=")[0] for setting in settings]


def test_empty_resets_what_the_host_decides_and_switches_a_link_off(tmp_path: Path) -> None:
    checked = loaded(tmp_path, "api: {socket: /x.sock}\n", settings=["api.socket=", "proxy.link="])
    plain = loaded(tmp_path, "api: {readGroup: 4711}\n")

    assert checked.configuration is not None
    assert plain.configuration is not None
    assert checked.configuration.api.socket == "/run/kepd/kepd.sock"
    assert checked.configuration.proxy.link == ""
    assert plain.configuration.proxy.link == "/run/kepd/cri/kubelet.sock"
    assert plain.configuration.api.read_group == "4711"


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        checked = load(Sources(file=tmp_path / name, environment={}), FACTS)
        assert [str(finding).removeprefix(f"{tmp_path}/{name}: ") for finding in checked.findings] == [
            "cannot be read: is no regular file"
        ]


def test_lists_and_maps_in_the_environment_are_json() -> None:
    environment = {"KEPD_NODE__ADDRESSES": '["10.0.0.1"]', "KEPD_NODE__LABELS": '{"a": "b"}', "KEPD_NODE__NAME": "7"}
    checked = load(Sources(environment=environment), FACTS)

    assert checked.configuration is not None
    assert checked.configuration.node.addresses == ("10.0.0.1",)
    assert checked.configuration.node.labels == {"a": "b"}
    assert checked.configuration.node.name == "7"


def test_directories_come_from_the_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYS-07: paths are never hard-coded."""
    (tmp_path / "token").touch()
    monkeypatch.setattr("agent.config.sources.SERVICE_ACCOUNT_TOKEN", tmp_path / "token")
    monkeypatch.setattr("socket.gethostname", lambda: "Node-1")
    environment = {"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "RUNTIME_DIRECTORY": "/run/x"}
    checked = load(Sources(environment={}), host_facts(environment | {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}))

    assert checked.configuration is not None
    assert checked.configuration.node.state_directory == "/var/lib/x"
    assert checked.configuration.api.socket == "/run/x/kepd.sock"
    assert checked.configuration.node.name == "node-1"
    assert checked.configuration.services.source == "kubernetes"


def test_the_shown_document_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    checked = loaded(tmp_path, "node: {labels: {a: b}}\npods: {shutdown: {groups: [{priority: 1, period: 10s}]}}\n")
    assert checked.configuration is not None
    again = loaded(tmp_path, as_yaml(as_document(checked.configuration)).encode())

    assert checked.configuration == again.configuration


def test_the_defaults_read_back_as_the_defaults(tmp_path: Path) -> None:
    again = loaded(tmp_path, as_yaml(as_document(Configuration())).encode())

    assert load(Sources(environment={}), FACTS).configuration == again.configuration


yamlish = st.text(alphabet=st.sampled_from(" \n-:{}[]&*!|>'\"%@`#,?abknodeimages0129.~\t"), max_size=200)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.binary(max_size=300) | yamlish.map(str.encode) | yamlish.map(lambda text: (HEAD + text).encode()))
def test_no_bytes_make_the_loader_fail_or_hang(tmp_path: Path, text: bytes) -> None:
    """Must hold of the foundation: never a traceback, never a hang."""
    checked = loaded(tmp_path, text)

    assert (checked.configuration is None) == bool(checked.findings)
    assert all("\n" not in str(finding) for finding in checked.findings)
