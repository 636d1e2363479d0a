#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What must hold on a machine of the Vagrantfile: `vagrant provision bare --provision-with check`.
set -eu
machine=$1

fail() {
    printf '==> %s: %s\n' "$machine" "$1" >&2
    exit 1
}

# description, then a command that becomes true within two minutes
holds() {
    what=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || fail "not so: $what"
        sleep 2
    done
    printf '==> %s: %s\n' "$machine" "$what"
}

pod_runs() { kepctl get pods | grep -q 'web-.*2/2.*Running'; }
answers() { curl -fs --max-time 2 http://10.96.0.10/hostname; }

case $machine in
bare)
    holds "every plane is ready" curl -fs http://127.0.0.1:10241/readyz
    holds "the pod of a file runs" pod_runs
    holds "its Service answers" answers
    pid=$(systemctl show -p MainPID --value kepd)
    systemctl restart kepd
    [ "$(systemctl show -p MainPID --value kepd)" != "$pid" ] || fail "kepd was not restarted"
    answers >/dev/null || fail "the Service does not answer after a restart"
    holds "the same containers run after a restart" pod_runs
    ;;
kubelet)
    export KUBECONFIG=/etc/kubernetes/admin.conf
    holds "the node is ready" kubectl wait --for=condition=Ready node --all --timeout=2s
    kepctl --endpoint /run/kepd-cri/kepd.sock get proxy
    kepctl --endpoint /run/kepd-cri/kepd.sock doctor || fail "the kubelet is set up otherwise than kepd advises"
    kubectl run probe --image=docker.io/library/busybox:1.37 --restart=Never -- sleep 3600 2>/dev/null || true
    holds "a pod runs through the proxy" kubectl wait --for=condition=Ready pod/probe --timeout=2s
    systemctl restart kepd-cri
    holds "the node is ready after a restart of the proxy" \
        kubectl wait --for=condition=Ready node --all --timeout=2s
    [ "$(kubectl get pod probe -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 0 ] ||
        fail "a restart of the proxy restarted a container"
    kubectl delete pod probe --wait=true
    ;;
*) fail "is no machine of the Vagrantfile" ;;
esac
