#!/usr/bin/env bash
# The cluster: three Kubernetes nodes in namespaces and cgroups of this machine. Needs root. settings.sh describes the
# environment. Usage: cluster.sh up | down [--dry-run]
#   up      starts everything, with PROXY (nodelb, the default, or kube-proxy) as the service proxy
#   down    ends it and removes what it made, except for the logs in K8S_RUN
#   --dry-run  prints the commands of either
set -euo pipefail
[ "${2:-}" != --dry-run ] || export DRY_RUN=1
if [ -n "${DRY_RUN:-}" ]; then
    K8S_RUN=$(mktemp -d)
    export K8S_RUN
    trap 'rm -rf "$K8S_RUN"' EXIT
fi
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/cluster/settings.sh
. "$here/settings.sh"
# shellcheck source=tests/cluster/network.sh
. "$here/network.sh"
# shellcheck source=tests/cluster/control.sh
. "$here/control.sh"
# shellcheck source=tests/cluster/node.sh
. "$here/node.sh"
# shellcheck source=tests/cluster/flannel.sh
. "$here/flannel.sh"
# shellcheck source=tests/cluster/proxy.sh
. "$here/proxy.sh"

check() {
    local name command missing=() plugin=()
    case $layout in
    routes | vxlan) ;;
    flannel) plugin=(flanneld flannel) ;;
    *) fail "LAYOUT is routes, vxlan or flannel" ;;
    esac
    [ -z "${DRY_RUN:-}" ] || return 0
    [ "$(id -u)" = 0 ] || fail "cluster.sh needs root"
    for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy containerd \
        containerd-shim-runc-v2 ctr "${plugin[@]}"; do
        [ -x "$bin/$name" ] || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || fail "Missing in $bin: ${missing[*]}. tests/cluster/README.md lists the programs."
    for command in bridge conntrack curl ethtool iptables jq nft nsenter openssl socat; do
        command -v $command >/dev/null || fail "Missing: $command. scripts/deps.sh cluster installs it."
    done
    [ -x "$bin/runc" ] || [ -x /usr/sbin/runc ] || fail "Missing: runc, in $bin or as a package."
    [ -x "$bin/cni/bridge" ] || [ -x /usr/lib/cni/bridge ] || fail "Missing: CNI plugins, in $bin/cni or as a package."
    for name in "$nodelb" "$prober" "$tool"; do [ -x "$name" ] || fail "Missing: $name. make cluster builds it."; done
    # A node mounts the hierarchies of the machine again. Tried on machines with version 1 and an empty version 2 next to it.
    if ! grep -q ' cgroup2 ' /proc/mounts || ! grep -q ' cgroup ' /proc/mounts; then
        fail "The nodes need cgroups of both versions on this machine (systemd.unified_cgroup_hierarchy=0)."
    fi
    [ ! -e "/run/netns/$prefix-router" ] || fail "The cluster exists: cluster.sh down removes it."
}

# Runs a function for each node at the same time.
each() {
    local node failed=0 jobs=()
    for node in "${nodes[@]}"; do
        "$@" "$node" &
        jobs+=($!)
        [ -z "${DRY_RUN:-}" ] || wait $!
    done
    [ -n "${DRY_RUN:-}" ] || for node in "${jobs[@]}"; do wait "$node" || failed=1; done
    return $failed
}

node_up() {
    node_files "$1"
    node_network_up "$1"
    paths_up "$1"
    cgroups_up "$1"
    node_boot "$1"
    runtime_up "$1"
    images_up "$1"
}

# The kubelets find their Node objects, with pod addresses and zones.
node_objects() {
    local node zones=(x a b c)
    for node in "${nodes[@]}"; do
        cat <<END
---
apiVersion: v1
kind: Node
metadata: {name: $node, labels: {topology.kubernetes.io/zone: zone-${zones[${node#node}]}, topology.kubernetes.io/region: lab}}
spec: {podCIDR: $(pod_cidr4 "$node"), podCIDRs: ["$(pod_cidr4 "$node")", "$(pod_cidr6 "$node")"]}
END
    done
}

balancer_up() {
    control balancer "$tool" balancer 127.0.0.1:8001
}

up() {
    check
    # What has started ends; KEEP=1 leaves it to look at.
    [ -n "${KEEP:-}${DRY_RUN:-}" ] || trap '[ $? = 0 ] || down' EXIT
    rm -rf "$run"
    mkdir -p "$run"
    for node in "${nodes[@]}"; do mkdir -p "$run/$node"; done
    echo "$layout" >"$run/layout"
    say "network"
    router_up
    credentials_up >"$run/pki.log" 2>&1 || { cat "$run/pki.log" >&2; return 1; }
    [ -z "${DRY_RUN:-}" ] || cat "$run/pki.log"
    say "nodes and control plane"
    each node_up &
    local booting=$!
    [ -z "${DRY_RUN:-}" ] || wait $booting
    control_up
    [ -n "${DRY_RUN:-}" ] || wait $booting
    say "kubelets"
    node_objects >"$run/nodes.yaml"
    quietly kubectl apply -f "$run/nodes.yaml" -f "$repository/contrib/kubernetes/rbac.yaml"
    if [ "$layout" = flannel ]; then
        quietly kubectl apply -f "$cluster/flannel.yaml"
        each flannel_up
    fi
    each kubelet_up
    say "service proxy: ${PROXY:-nodelb}"
    wait_for 30 "token of nodelb" token
    each proxy "${PROXY:-nodelb}"
    quietly kubectl apply -f "$cluster/dns.yaml"
    balancer_up
    quietly kubectl wait --for=condition=Ready nodes --all --timeout=60s
    quietly kubectl -n kube-system rollout status deployment/coredns --timeout=90s
    say "up after $SECONDS s: KUBECONFIG=$KUBECONFIG, in ip netns exec $prefix-router"
}

down() {
    local node
    control_down balancer kubectl-proxy
    for node in "${nodes[@]}"; do node_halt "$node"; done
    control_down kube-scheduler kube-controller-manager kube-apiserver etcd
    for node in "${nodes[@]}"; do cgroups_down "$node"; done
    network_down
    # Logs stay.
    for node in "${nodes[@]}"; do do_ rm -rf "$run/$node/var" "$run/$node/root"; done
    do_ rm -rf "$run/etcd" "$run/pki"
    [ -n "${DRY_RUN:-}" ] || left
}

# Fails if something is left.
left() {
    local name path left=()
    for name in "${nodes[@]}" router outside; do
        for path in "/run/netns/$prefix-$name" $(hierarchies | sed "s|\$|/$prefix-$name|"); do
            [ ! -e "$path" ] || left+=("$path")
        done
    done
    mapfile -t -O "${#left[@]}" left < <(awk -v run="$run/" 'index($2, run) == 1 { print $2 }' /proc/mounts)
    ((${#left[@]} == 0)) || { printf 'cluster.sh left this behind:\n' >&2; printf '%s\n' "${left[@]}" >&2; return 1; }
}

case ${1:-} in
up) up ;;
down) down ;;
*) fail "usage: $0 up | down [--dry-run]" ;;
esac
