# SPDX-License-Identifier: Apache-2.0
"""One failure has one exit code, whichever command meets it."""

import pytest

from agent.cli.main import COMMANDS
from agent.model.exit_codes import NOT_FOUND, UNREACHABLE, USAGE
from tests.cli.node_in_process import Node
from tests.host.forked_kepctl import forked_kepctl

ASKING = """
get pods
get all
describe pod web
logs web
exec web -- ls
attach web
cp web:/a b
port-forward web 80
debug web --image a
restart web
checkpoint web
restore a --as b
retry web
timeline web
explain pod web
explain route web
explain dns web
explain deployment web
delete pod web
edit pod web
run a --image b
create configmap a
create deployment a --image b
expose deploy/web
scale deploy/web --replicas 1
rollout restart deploy/web
rollout status deploy/web
wait pod/web --for=delete
top
stats web
events
status
health
doctor
config show
config reload
pull a
prefetch a
cancel pull 1
set pull-limit 1
inspect image a
gc --dry-run
rules
diff
trace web web
trace --from 1.1.1.1 --to 1.1.1.1:1
end connections web
flush dns
release hold 1
reset device a
drain
drain n1
uncordon
plan stop web
api kepd.v1.NodeService/GetNode
api-resources
node-logs kepd
version --daemon
""".strip().splitlines()

MISSING = """
get pod nobody
get svc nobody
get cm nobody
describe pod nobody
describe deploy/nobody
logs nobody
exec nobody -- ls
attach nobody
cp nobody:/a b
port-forward nobody 80
debug nobody --image a
restart nobody
checkpoint nobody
explain pod nobody
explain deployment nobody
delete pod nobody
delete cm nobody
edit cm nobody
expose deploy/nobody
scale deploy/nobody --replicas 1
rollout restart deploy/nobody
rollout status deploy/nobody
plan stop nobody
release hold nobody
drain nobody
trace nobody web
trace web nobody
""".strip().splitlines()


@pytest.mark.parametrize("line", ASKING)
def test_without_a_daemon_every_command_fails_alike(line: str) -> None:
    done = forked_kepctl("--endpoint", "/nonexistent/kepd.sock", *line.split())

    assert done.returncode == UNREACHABLE
    assert "no daemon at /nonexistent/kepd.sock: there is no such socket" in done.stderr


@pytest.mark.parametrize("line", MISSING)
def test_what_is_not_there_is_not_found(node: Node, line: str) -> None:
    done = node.ctl(*line.split())

    assert (done.returncode, "nobody" in done.stderr) == (NOT_FOUND, True), done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_flag_that_nobody_knows_is_bad_usage(name: str) -> None:
    more = ("x", "--image", "y", "--") if name == "run" else ()
    done = forked_kepctl(name, *(() if more else ("--no-such-flag",)), *(("--restart", "No") if more else ()))

    assert done.returncode == USAGE
