# shellcheck shell=bash
# Settings and functions of the cluster, which the other scripts of this folder source. K8S_BIN has the programs, K8S_RUN
# (default target/cluster) the state of the running cluster, K8S_IMAGES (default K8S_BIN/images) the images. NODELB is the
# daemon, CLUSTER a name (for a second cluster, with another K8S_RUN), LAYOUT the network between the nodes: routes, vxlan or
# flannel (also as CNI=flannel). With DRY_RUN=1, commands are printed instead of run.
# shellcheck disable=SC2034 # the other scripts use the settings
cluster=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
repository=$(realpath "$cluster/../..")
target=$(realpath -m "${TARGET:-$repository/target}")
bin=$(realpath -m "${K8S_BIN:?a folder with etcd, kube-apiserver, kubelet and so on: tests/cluster/README.md lists them}")
images=$(realpath -m "${K8S_IMAGES:-$bin/images}")
run=$(realpath -m "${K8S_RUN:-$target/cluster}")
nodelb=$(realpath -m "${NODELB:-$target/release/nodelb}")
prober=$(realpath -m "${PROBER:-$target/debug/nodelb-prober}")
tool=$(realpath -m "${TOOL:-$target/debug/nodelb-cluster}")
results=$(realpath -m "${K8S_RESULTS:-$target/cluster-results}")
layout=${LAYOUT:-${CNI:-routes}}
nodes=(node1 node2 node3)
# Of every namespace and cgroup on the machine.
prefix="nodelb-cluster${CLUSTER:+-$CLUSTER}"
api=10.89.0.1
service_cidrs=10.96.0.0/16,fd00:10:96::/112
pod_cidrs=10.244.0.0/16,fd00:10:244::/48
export KUBECONFIG=$run/admin.kubeconfig
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY
PATH=$bin:$PATH:/usr/sbin:/sbin

node_ip4() { echo "10.89.0.1${1#node}"; }
node_ip6() { echo "fd00:89::1${1#node}"; }
pod_cidr4() { echo "10.244.${1#node}.0/24"; }
pod_cidr6() { echo "fd00:10:244:${1#node}::/64"; }

say() { echo "$(date +%T) $*"; }
fail() { echo "$*" >&2; exit 1; }

# do_ COMMAND...: runs or prints it.
do_() {
    if [ -n "${DRY_RUN:-}" ]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# Without the output of a command that runs.
quietly() {
    if [ -n "${DRY_RUN:-}" ]; then "$@"; else "$@" >/dev/null; fi
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    [ -z "${DRY_RUN:-}" ] || return 0
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "$what: not in time. Logs are in $run." >&2
            return 1
        fi
        sleep 0.2
    done
}

# Mount points of the cgroup hierarchies, version 1 and 2.
hierarchies() { awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts; }
unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)

# in_net router|outside COMMAND...
in_net() {
    local net=$1
    shift
    do_ nsenter --net="/run/netns/$prefix-$net" -- "$@"
}

# in_node NODE COMMAND...: in all namespaces and in the cgroups of a node.
in_node() {
    local node=$1 hierarchy
    shift
    if [ -n "${DRY_RUN:-}" ]; then
        printf '%s: ' "$node"
        do_ "$@"
        return
    fi
    (
        for hierarchy in $(hierarchies); do echo "$BASHPID" >"$hierarchy/$prefix-$node/cgroup.procs"; done
        exec nsenter --target "$(<"$run/$node/init.pid")" --all -- "$@"
    )
}

kubectl() { in_net router env KUBECONFIG="$KUBECONFIG" "$bin/kubectl" "$@"; }

# What a daemon is in a node, for `start` and `stop`: its process in the numbers of the node.
# start NODE NAME COMMAND...
start() {
    local node=$1 name=$2
    shift 2
    if [ -n "${DRY_RUN:-}" ]; then
        in_node "$node" "$@"
        return
    fi
    rm -f "$run/$node/$name.pid"
    # shellcheck disable=SC2016 # the shell in the node expands them
    in_node "$node" setsid bash -c 'echo $$ >"$0.pid"; exec "$@" >>"$0.log" 2>&1 </dev/null' "$run/$node/$name" "$@" \
        >/dev/null 2>&1 </dev/null &
    disown
    wait_for 10 "$node: $name" test -s "$run/$node/$name.pid"
}

# running NODE NAME
running() {
    [ -s "$run/$1/$2.pid" ] && in_node "$1" kill -0 "$(<"$run/$1/$2.pid")" 2>/dev/null
}

# stop NODE NAME [SIGNAL]
stop() {
    local pid
    [ -z "${DRY_RUN:-}" ] || { echo "$1: stop $2"; return; }
    running "$1" "$2" || return 0
    pid=$(<"$run/$1/$2.pid")
    # shellcheck disable=SC2016
    in_node "$1" bash -c 'kill -"$1" "$0" 2>/dev/null; for ((i = 0; i < 300; i++)); do
        kill -0 "$0" 2>/dev/null || exit 0; sleep 0.1; done; kill -9 "$0"' "$pid" "${3:-TERM}"
    rm -f "$run/$1/$2.pid"
}
