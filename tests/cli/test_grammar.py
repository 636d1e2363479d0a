# SPDX-License-Identifier: Apache-2.0
"""One grammar of names, kinds and formats, against the real API server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.objects.words import find_named, parse_selector, parse_wanted, qualified
from agent.cli.session import CommandFailed
from agent.kinds.kind import Named
from agent.kinds.registry import BY_WORD
from agent.model.event import Event
from agent.model.exit_codes import NOT_FOUND, USAGE
from agent.model.pods.container_fields import Container, ContainerPort, Env, Resources
from agent.model.pods.fields import PodFields
from agent.model.pods.state import Condition, ContainerState, PodState, Termination
from agent.model.services.report import EndpointReport, PortReport, ServiceReport
from tests.cli.node_in_process import Node, running_node
from tests.host.process import kepctl

PORTS, VARIABLES = (ContainerPort(container_port=80),), (Env(name="PASSWORD", value="hush"),)
SPEC = PodFields(containers=(Container(name="app", image="i:1", ports=PORTS, env=VARIABLES),))


def pod(name: str, namespace: str = "default", app: str = "web", *, phase: str = "Running") -> PodState:
    return PodState(
        namespace=namespace,
        name=f"{name}-n1",
        uid=f"uid-{name}",
        manifest_name=name,
        phase=phase,
        ip="10.0.0.9",
        host_ips=("192.0.2.7", "2001:db8::7"),
        created_at_s=1_700_000_000.0,
        labels=(("app", app),),
        spec=SPEC,
        conditions=(
            Condition(type="Ready", is_true=True, since_s=1_700_000_009.0),
            Condition(type="PodScheduled", is_true=True),
        ),
        containers=(
            ContainerState(
                name="app",
                image="i:1",
                id="c0ffee",
                state="Running",
                is_ready=True,
                is_started=True,
                started_at_s=1_700_000_001.0,
                resources=Resources(limits={"cpu": "1"}, requests={"cpu": "500m"}),
                last=Termination(exit_code=0, reason="Completed", finished_at_s=1_700_000_000.0),
            ),
        ),
    )


def endpoint(port: str, number: int, *, state: str = "ready") -> EndpointReport:
    return EndpointReport(
        namespace="default", service="web", port=port, protocol="TCP", family="IPv4",
        endpoint=f"10.0.0.9:{number}", node="n1", state=state, zones=("a",),
    )  # fmt: skip


def fill(node: Node) -> None:
    for one in (pod("web"), pod("web-backend", app="db"), pod("dns", "kube-system", "dns")):
        node.pods.pods.put(one.key, one)
    port = PortReport(
        family="IPv4", name="http", protocol="TCP", port=80, node_port=0, total=1, used=1, mode="", verdict=""
    )
    node.services.reports = [
        ServiceReport(
            namespace="default", name="web", type="ClusterIP", cluster_ips=("10.96.0.9",), ports=(port,), affinity_s=0
        )
    ]
    node.services.found = [endpoint("http", 80), endpoint("metrics", 9090)]
    node.events.events = [
        Event(
            id="e1",
            is_warning=True,
            reason="BackOff",
            message="m",
            plane="pods",
            namespace="default",
            object_name="web",
        )
    ]  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("g"), fill) as found:
        yield found


KNOWN = [
    Named("default", "web-n1", "web"),
    Named("default", "web-backend-n1", "web-backend"),
    Named("kube-system", "dns-n1", "dns"),
    Named("a", "twice-n1", "twice"),
    Named("b", "twice-n1", "twice"),
]


@pytest.mark.parametrize(
    ("text", "namespace", "found"),
    [
        ("web", "", "default/web-n1"),
        ("web-n1", "", "default/web-n1"),
        ("default/web", "", "default/web-n1"),
        ("dns", "", "kube-system/dns-n1"),
        ("dns", "kube-system", "kube-system/dns-n1"),
        ("kube-system/dns", "kube-system", "kube-system/dns-n1"),
        ("twice", "b", "b/twice-n1"),
    ],
)
def test_a_name_means_one_pod_in_full_or_as_in_the_manifest(text: str, namespace: str, found: str) -> None:
    """CL-7: `web` is not the only pod whose name begins with it."""
    assert find_named(BY_WORD["po"], text, KNOWN, namespace).key == found


@pytest.mark.parametrize(
    ("text", "namespace", "code", "says"),
    [
        ("web-", "", NOT_FOUND, 'no pod "web-"; did you mean "web"?'),
        ("dns", "default", NOT_FOUND, 'no pod "dns"'),
        ("twice", "", USAGE, '"twice" may mean a/twice-n1, b/twice-n1; name one of them in full'),
        ("default/web", "kube-system", USAGE, '"default/web" and -n kube-system name two namespaces; expected one'),
    ],
)
def test_a_name_that_means_none_or_several_says_what_is_there(text: str, namespace: str, code: int, says: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        find_named(BY_WORD["po"], text, KNOWN, namespace)

    assert (failed.value.exit_code, str(failed.value)) == (code, says)


@pytest.mark.parametrize(
    ("word", "namespace", "found"),
    [
        ("web", "", "default/web"),
        ("svc/web", "", "default/web"),
        ("shop/web", "", "shop/web"),
        ("web", "shop", "shop/web"),
    ],
)
def test_what_the_daemon_looks_up_has_its_namespace(word: str, namespace: str, found: str) -> None:
    assert qualified(word, "service", namespace) == found


def test_what_changes_something_looks_in_no_other_namespace() -> None:
    with pytest.raises(CommandFailed, match="there is kube-system/dns-n1: say -n kube-system"):
        find_named(BY_WORD["po"], "dns", KNOWN, elsewhere=False)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("po",), [("pods", ())]),
        (("Pods", "a", "b"), [("pods", ("a", "b"))]),
        (("pod/a", "svc/b"), [("pods", ("a",)), ("services", ("b",))]),
        (("po,svc",), [("pods", ()), ("services", ())]),
        (("ep",), [("endpoints", ())]),
        (("eps",), [("endpoints", ())]),
        (("im", "busybox"), [("images", ("busybox",))]),
        (("ev",), [("events", ())]),
        (("cm", "a/b"), [("configmaps", ("a/b",))]),
    ],
)
def test_kinds_have_short_names_and_stand_before_names_or_in_them(
    words: tuple[str, ...], found: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(one.kind.plural, one.names) for one in parse_wanted(words)] == found


def test_a_first_word_that_is_no_kind_is_a_pod_where_one_is_expected() -> None:
    assert [(one.kind.plural, one.names) for one in parse_wanted(("web",), "pods")] == [("pods", ("web",))]
    assert [(one.kind.plural, one.names) for one in parse_wanted(("svc", "web"), "pods")] == [("services", ("web",))]


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("app=web", True), ("app==web", True), ("app!=web", False), ("app", True), ("!app", False), ("tier", False),
        ("app in (web, db)", True), ("app notin (web)", False), ("app=web,tier!=x", True), ("app=web,tier", False),
        ("", True),
    ],
)  # fmt: skip
def test_selectors_are_those_of_kubectl(selector: str, *, holds: bool) -> None:
    assert parse_selector(selector)({"app": "web"}) is holds


def test_a_selector_that_is_none_is_refused() -> None:
    with pytest.raises(CommandFailed, match='"a=b=c" is no part of a label selector'):
        parse_selector("a=b=c")


def test_get_takes_short_names_namespaces_labels_and_several_kinds(node: Node) -> None:
    """CL-7, CL-12."""
    assert node.out("get", "po", "web", "-o", "name") == "pod/default/web-n1\n"
    assert node.out("get", "pod/web", "-o", "name") == "pod/default/web-n1\n"
    assert node.out("get", "pods", "-n", "kube-system", "-o", "name") == "pod/kube-system/dns-n1\n"
    assert node.out("get", "pods", "-l", "app in (db,dns)", "-o", "name").split() == [
        "pod/default/web-backend-n1",
        "pod/kube-system/dns-n1",
    ]
    assert len(node.out("get", "pods", "-A", "-o", "name").split()) == 3
    assert node.out("get", "po,svc", "-n", "default", "-o", "name").split()[-1] == "service/default/web"
    assert node.out("get", "ep", "10.0.0.9:80", "-o", "name") == "endpoint/10.0.0.9:80\n", "as before"
    assert len(node.out("get", "ep", "web", "-o", "name").split()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get", "pods", "wep"), 3, 'no pod "wep"; did you mean "web"?'),
        (("get", "podz"), 2, 'did you mean "pods"?'),
        (("get", "pods", "--wach"), 2, "--watch"),
        (("get", "pods", "-o", "jsn"), 2, 'no format "jsn"; did you mean "json"?'),
        (("get", "pods", "-o", "jsonpath"), 2, 'needs argument after "="'),
        (("get", "pods", "-o", "jsonpath={.items[*"), 2, "a brace is open"),
        (("get", "containers", "-l", "a=b"), 2, "containers have no labels"),
        (("get", "pods", "-n", "a", "-A"), 2, "exclude each other"),
        (("explain", "pds", "web"), 2, 'did you mean "pod"?'),
        (("restart", "dns"), 3, "say -n kube-system"),
    ],
)
def test_near_misses_of_kinds_names_and_flags_are_suggested(
    node: Node, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = node.ctl(*arguments)

    assert says in done.stderr
    assert done.returncode == code


def test_every_command_takes_the_names_that_get_takes(node: Node) -> None:
    """CL-7, CL-8."""
    assert "plan: default/web-n1" in node.out("explain", "pod", "web")
    assert "plan: default/web-n1" in node.out("explain", "po/web")
    assert "plan: kube-system/dns-n1" in node.out("explain", "pods", "-n", "kube-system", "dns")
    assert node.out("restart", "web/app") == "container/web-n1/app restarts\n"
    assert node.out("restart", "default/web") == "container/web-n1/all restarts\n"
    assert node.out("restart", "-n", "kube-system", "pod/dns") == "container/dns-n1/all restarts\n"


def test_pods_are_kubernetes_objects_with_their_zeros(node: Node) -> None:
    """CL-12, NP-14: recipes for kubectl and jq get what they ask for."""
    one = json.loads(node.out("get", "pod", "web", "-o", "json"))
    listed = json.loads(node.out("get", "pods", "-o", "json"))
    status = one["status"]["containerStatuses"][0]

    assert (one["apiVersion"], one["kind"], one["metadata"]["name"]) == ("v1", "Pod", "web-n1")
    assert one["metadata"]["labels"] == {"app": "web"}
    assert one["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert one["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert one["spec"]["containers"][0]["env"] == [{"name": "PASSWORD"}]
    assert (one["spec"]["restartPolicy"], one["spec"]["nodeName"]) == ("Always", "n1")
    assert one["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "2023-11-14T22:13:29Z"},
        {
            "type": "PodScheduled",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2023-11-14T22:13:20Z",
        },
    ]
    assert one["status"]["hostIP"] == "192.0.2.7"
    assert one["status"]["hostIPs"] == [{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}]
    assert status["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
    assert status["allocatedResources"] == {"cpu": "500m"}
    assert status["restartCount"] == 0
    assert status["lastState"]["terminated"]["exitCode"] == 0
    assert status["state"] == {"running": {"startedAt": "2023-11-14T22:13:21Z"}}
    assert (listed["kind"], listed["apiVersion"], len(listed["items"])) == ("List", "v1", 3)


def test_services_slices_and_events_are_kubernetes_objects(node: Node) -> None:
    service = json.loads(node.out("get", "svc", "web", "-o", "json"))
    (piece,) = json.loads(node.out("get", "endpointslices", "-o", "json"))["items"]
    (event,) = json.loads(node.out("get", "ev", "-o", "json"))["items"]

    assert service["spec"]["clusterIP"] == "10.96.0.9"
    assert service["spec"]["ports"] == [{"protocol": "TCP", "targetPort": 80, "port": 80, "name": "http"}]
    assert service["status"] == {"loadBalancer": {}}
    assert (piece["apiVersion"], piece["kind"]) == ("discovery.k8s.io/v1", "EndpointSlice")
    assert [port["name"] for port in piece["ports"]] == ["http", "metrics"]
    assert piece["endpoints"] == [
        {
            "addresses": ["10.0.0.9"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "n1",
            "hints": {"forZones": [{"name": "a"}]},
        }
    ]
    assert event["involvedObject"] == {"kind": "Pod", "name": "web", "namespace": "default"}


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("jsonpath={.items[*].metadata.name}", "web-backend-n1 web-n1 dns-n1\n"),
        ('jsonpath={range .items[*]}{.metadata.namespace}{"\\t"}{.status.phase}{"\\n"}{end}', "default\tRunning\n"),
        ("jsonpath={.items[?(@.metadata.name=='dns-n1')].metadata.namespace}", "kube-system\n"),
        ("jsonpath={.items[0].status.containerStatuses[0].restartCount}", "0\n"),
        (r"jsonpath={.items[0].metadata.labels.app}", "db\n"),
        ("custom-columns=NAME:.metadata.name,NOT:.spec.nothing", "NAME            NOT\nweb-backend-n1  <none>\n"),
    ],
)
def test_templates_and_columns_are_those_of_kubectl(node: Node, output: str, shown: str) -> None:
    assert shown in node.out("get", "pods", "-o", output)


def test_what_only_kepd_has_keeps_its_shape(node: Node) -> None:
    assert json.loads(node.out("get", "containers", "-o", "json"))["kind"] == "Container"


def test_a_watch_shows_what_is_named_under_one_header(short_path: Path) -> None:
    """CL-8: the name was left out of account, and headers came before every row."""
    with running_node(short_path, fill) as watched:
        command = [sys.executable, "-m", "agent.cli.main", "--endpoint", str(watched.path)]
        with subprocess.Popen([*command, "get", "pods", "web", "-w"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            watched.put(pod("dns", "kube-system", "dns", phase="Failed"))
            watched.put(pod("web", phase="Failed"))
            lines.append(process.stdout.readline())
            process.terminate()

    assert [line.split()[:2] for line in lines] == [["NAMESPACE", "NAME"], ["default", "web-n1"], ["default", "web-n1"]]
    assert lines[2].split()[3] == "Failed"
    assert lines[0].index("STATUS") == lines[2].index("Failed")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("get ", "pods"),
        ("get pods w", "web"),
        ("get svc ", "web"),
        ("get pod/", "pod/web"),
        ("get pods kube", "kube-system/dns-n1"),
        ("get pods -n kube-system ", "dns"),
        ("logs w", "web"),
        ("exec w", "web"),
        ("explain pod w", "web"),
        ("explain route ", "web"),
        ("describe pod w", "web"),
        ("describe pod/w", "pod/web"),
        ("describe jo", "jobs"),
        ("rollout status dep", "deployments"),
        ("scale dep", "deployments"),
        ("get pods -o ", "json"),
    ],
)
def test_names_are_completed_for_all_commands(node: Node, typed: str, offered: str) -> None:
    """CL-13."""
    environment = {
        "_KEPCTL_COMPLETE": "bash_complete", "COMP_WORDS": f"kepctl {typed}",
        "COMP_CWORD": str(len(f"kepctl {typed}".split(" ")) - 1), "KEPD_ENDPOINT": str(node.path),
    }  # fmt: skip
    words = [line.partition(",")[2] for line in kepctl(environment=environment).stdout.splitlines()]

    assert offered in words


@pytest.mark.parametrize(("shell", "shown"), [("bash", "plain,web"), ("zsh", "plain\nweb\n_"), ("fish", "plain,web")])
def test_every_shell_gets_names(node: Node, shell: str, shown: str) -> None:
    environment = {
        "_KEPCTL_COMPLETE": f"{shell}_complete", "COMP_WORDS": "kepctl delete pod w",
        "COMP_CWORD": "w" if shell == "fish" else "3", "KEPD_ENDPOINT": str(node.path),
    }  # fmt: skip

    assert shown in kepctl(environment=environment).stdout


def test_the_first_word_is_completed_without_any_command_loaded() -> None:
    code = (
        "import sys, agent.cli.main as m, click; "
        "print([one.value for one in m.cli.shell_complete(click.Context(m.cli), 'ge')], 'grpc' in sys.modules)"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "['get'] False\n"
