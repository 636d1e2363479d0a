# SPDX-License-Identifier: Apache-2.0
"""What people type before they have read anything: in two lines at most they are where they wanted to be.

A line is in the words of kubectl, podman, docker, crictl or systemctl. Either kepctl takes it, or its answer names one
that it takes. What the node at hand does not have may fail all the same.
"""

import re
import shlex
from pathlib import Path

import pytest

from agent.model.exit_codes import USAGE
from tests.cli.node_in_process import Node
from tests.cli.test_examples import HELD
from tests.cli.test_foreign_words import parsed
from tests.host.process import ROOT
from tests.objects.test_applying import POD

ROW = re.compile(r"^- .+?: `kepctl (.+)`$", re.MULTILINE)
STAYS = (*HELD, "logs -f", "rollout status", "⇥")
# Of the words that an answer has for what is to be filled in.
FILLED = {
    "KIND NAME": "pod web", "POD/CONTAINER": "web/app", "SERVICE": "web", "NAME": "web", "POD": "web",
    "FILE": "one.yaml", "DIR": "many", "IMAGE": "web:1", "USER": "u", "SECONDS": "3", "HOST": "r.test",
}  # fmt: skip

NEWCOMER = """
run web --image=web:1
create deployment web --image=web:1 --replicas=2
get pods
get po -o wide
get all
describe pod web
logs web
exec web -- ls
delete pod web
images
pull web:1
get svc
expose deployment web --port=80
explain pod web
why web
restart web
rollout restart deployment/web
scale deployment web --replicas=3
apply one.yaml
apply -f one.yaml
apply -k many
top pods
top nodes
get events
drain n1
uncordon n1
cordon n1
help
help get
version
""".strip().splitlines()

OTHERS = """
get nodes
get no -o wide
get ns
get sts
get rs
get cronjobs
get ingress
get pvc
get pods --show-labels
get pods -L app
get pods --no-headers
get pods --field-selector=status.phase=Running
get pods -l app=web -A
get pods -n default -o name
get pods -o json
get pod/web -o yaml
get deploy,svc
get endpoints
get configmap
get secrets
get events --field-selector involvedObject.name=web
get pods --kubeconfig x
get pods -o wide --sort-by=.metadata.name
api-resources
api-versions
cluster-info
auth can-i get pods
label pod web a=b
annotate pod web a=b
patch pod web -p {}
replace -f one.yaml
edit sts web
create namespace shop
create configmap s --from-literal=a=b --dry-run=client
create secret generic s --from-literal=a=b --dry-run=client
create job work --image=web:1 --dry-run=client
create service clusterip web --tcp=80 --dry-run=client
create ingress web
create cronjob work --image=web:1 --schedule=@daily --dry-run=client
autoscale deployment web --max=3
rollout undo deployment/web
rollout history deployment/web
rollout pause deployment/web
set image deployment/web web=web:2
config view
config use-context shop
config get-contexts
taint nodes n1 a=b:NoSchedule
drain n1 --ignore-daemonsets
drain n1 --delete-emptydir-data
delete pod web --force
delete sts web
delete -f one.yaml --ignore-not-found
delete pods --all --dry-run=client
proxy
kustomize many
ps
ps -a
rm web
rmi web:1
stop web
start web
kill web
inspect web
inspect image web:1
stats web
top
build .
push web:1
tag web:1 web:2
login r.test
network ls
volume ls
system prune
compose up
play kube one.yaml
pods
rmp web
stopp web
inspectp web
inspecti web:1
runp one.json
imagefsinfo
statsp
info
status
enable kepd
disable kepd
reload
is-active
journalctl
list-units
svc
deployments
ls
shell web
tail web
context
man get
""".strip().splitlines()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that lines name, and no editor that would stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBE_EDITOR", "true")
    (tmp_path / "many").mkdir()
    for name in ("one.yaml", "other.yaml", "many/one.yaml"):
        (tmp_path / name).write_bytes(POD)
    (tmp_path / "many/kustomization.yaml").write_text("resources: [one.yaml]\n")
    (tmp_path / "wrong.yaml").write_text("kind: Pod\n")
    (tmp_path / "words.txt").write_text("so")
    (tmp_path / "words.env").write_text("A=b\n")
    (tmp_path / "node.yaml").write_text("images: {maxParallelPulls: 2}\n")


def answer(node: Node, line: str) -> str:
    """What kepctl says to a line that it does not take; empty for one that it takes."""
    words = shlex.split(line.partition(" < ")[0])
    if any(one in f"kepctl {line}" for one in STAYS):
        parsed(f"kepctl {line}")
        return ""
    done = node.ctl(*words)
    assert "Traceback" not in done.stderr
    is_elsewhere = "is not served here" in done.stderr
    return "" if done.returncode != USAGE or is_elsewhere else done.stderr


def offered(text: str) -> list[str]:
    """The lines in an answer, with something for what is to be filled in."""
    found = [line.strip() for line in re.findall(r"kepctl ([^;\n]+)", text.partition("Error: ")[2] or text)]
    for word, value in FILLED.items():
        found = [line.replace(word, value) for line in found]
    return found


@pytest.mark.parametrize("line", [*NEWCOMER, *OTHERS])
def test_a_first_line_works_or_its_answer_names_one_that_does(node: Node, line: str) -> None:
    text = answer(node, line)

    assert not text or any(not answer(node, other) for other in offered(text)) or "leave it out" in text, text


@pytest.mark.parametrize("line", ROW.findall((ROOT / "docs/kubectl.md").read_text().partition("\n## Words of")[0]))
def test_a_line_of_the_page_is_taken(node: Node, line: str) -> None:
    assert answer(node, line.replace("IMAGE", "web:1").replace("$REGISTRY", "r.test")) == ""
