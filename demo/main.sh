#!/usr/bin/env bash
# The content of `make demo`, run inside the namespaces of demo/run.sh: services from files, then services from a
# Kubernetes API server, then a client outside the node. Every check prints a tick or a cross; the exit code is 0 only if
# all checks passed.
# shellcheck disable=SC2317 # the checks are called by name
set -uo pipefail
bin=$1
# The cgroup of the node, and the one of other machines.
cgroup=$2/node
# shellcheck disable=SC2034 # demo/outside.sh uses it
others=$2/others
PATH=$bin:$PATH:/usr/sbin:/sbin
trap 'exit 130' INT TERM

dir=/run/nodelb-demo
# shellcheck source=demo/output.sh
. demo/output.sh
# shellcheck source=demo/files.sh
. demo/files.sh
# shellcheck source=demo/kubernetes.sh
. demo/kubernetes.sh
# shellcheck source=demo/outside.sh
. demo/outside.sh

connect() { nodelb-prober connect --to "$@"; }
get() { curl --silent --show-error --fail "http://localhost:9890$1"; }
ready() { get /readyz; }
# served ADDRESS BACKEND: nodelb's table has this row.
served() { get "/frontends?address=${1%:*}" | grep -F "$1/" | grep -F " $2/" | grep -qw OK; }
refused() { [[ $(connect "$1") == *" ECONNREFUSED 1"* ]]; }
unrouted() { [[ $(connect "$1") == *" ENETUNREACH 1"* ]]; }

start_nodelb() {
    # The traffic ends when the last process closes file descriptor 9: nodelb must not inherit it.
    nodelb run --config "$dir/nodelb.toml" >>"$dir/log" 2>&1 9>&- &
    nodelb=$!
    # If nodelb were a job, bash would print a message when it is killed.
    disown "$nodelb"
}

gone() { ! kill -0 "$nodelb" 2>/dev/null; }
no_pins() { [ ! -e /sys/fs/bpf/nodelb ] || { find /sys/fs/bpf/nodelb; false; }; }
unharmed() { [[ $1 =~ ^([0-9]+)\ connections && $1 == *"; 0 failed"* ]] && ((BASH_REMATCH[1] >= 1000)); }

# start_traffic ADDRESS RATE [COMMAND...]: makes connections until end_traffic, which stores the result in $traffic. The
# command runs the prober.
start_traffic() {
    exec 9> >("${@:3}" nodelb-prober probe --to "$1" --rate "$2" >"$dir/traffic")
    prober=$!
}

end_traffic() {
    exec 9>&-
    wait "$prober" 2>/dev/null
    traffic=$(cat "$dir/traffic")
}

# leave ADDRESS: stops nodelb, cleans up, and checks the effects.
leave() {
    kill -TERM "$nodelb"
    check "SIGTERM stops nodelb" soon gone
    check "connections continue to work without nodelb" connect "$1" -n 100
    show nodelb cleanup --config "$dir/nodelb.toml"
    check "after cleanup, nothing is pinned" no_pins
    check "after cleanup, nothing is translated: $1 has no route" unrouted "$1"
}

prepare() {
    mount -t bpf bpf /sys/fs/bpf
    mount -t tmpfs tmpfs /run
    mkdir -p "$dir/services.d"
    ip link set lo up
    # Backends listen on these addresses. The services are in 198.51.100.0/24, which has no route. All of them are
    # documentation or link-local addresses, except for 1.1.1.1 of the incident's reproduction, and never leave this
    # namespace.
    local address
    for address in 192.0.2.0/24 192.0.2.1/32 1.1.1.1/32 169.254.128.7/32; do
        ip address add "$address" dev lo
    done
    # The load balancer is not part of the node: nodelb does not serve a service at an address of the node itself.
    ip route add local 203.0.113.10/32 dev lo
    nodelb-prober backend --name backend-1 --tcp 192.0.2.11:8080 --udp 192.0.2.11:5353 &
    nodelb-prober backend --name backend-2 --tcp 192.0.2.12:8080 --udp 192.0.2.12:5353 &
    nodelb-prober backend --name incident-backend --tcp 1.1.1.1:80 &
    disown -a
}

say "The demo runs in its own network namespace and cgroup. The network and the services of this machine are not changed."
prepare
from_files
from_kubernetes
from_outside
verdict
