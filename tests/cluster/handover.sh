#!/usr/bin/env bash
# From kube-proxy to nodelb and back on real nodes, with an upgrade, kill -9, an outage of the API server and a reboot, under
# traffic of every kind; the last two with kube-proxy, too, for comparison. Starts a cluster for each of LAYOUTS (default: routes vxlan) and ends it. Writes
# docs/development/handover.md; exits with 1 if more exchanges failed than expected.tsv documents. Usage: handover.sh
# shellcheck disable=SC2154,SC2317 # settings.sh sets the variables; events are called by name
set -euo pipefail
here=$(dirname "$(realpath "$0")")
for library in settings network control node flannel proxy flows; do
    # shellcheck source=/dev/null
    . "$here/$library.sh"
done
results=$results/handover
# Connections settle before an event, and show its consequences after it.
before=${BEFORE:-5} after=${AFTER:-15}

# during NAME NODE...: the phase of an event, whose name is the function to call, with traffic at these nodes.
during() {
    local event=$1
    shift
    number=$((number + 1))
    say "$layout: ${event//_/ }"
    traffic_up "$directory/$number-$event" "$@"
    sleep "$before"
    "$event"
    sleep "$after"
    traffic_down
}

# docs/kubernetes.md, steps 2 to 5.
kube-proxy_to_nodelb() {
    local node
    for node in "${nodes[@]}"; do
        PACKETS=on proxy nodelb "$node"
        sleep 3
        kube_proxy_remove "$node"
    done
}

# As a package does it: another file under the name, and a restart.
upgrade_of_nodelb() {
    local node
    for node in "${nodes[@]}"; do
        cp "$nodelb" "$run/$node/nodelb.new"
        mv "$run/$node/nodelb.new" "$run/$node/nodelb"
        stop "$node" nodelb
        nodelb_start "$node"
    done
}

# On all nodes at once. systemd starts it again after a second.
kill_of_nodelb() {
    local node
    for node in "${nodes[@]}"; do stop "$node" nodelb KILL; done
    sleep 1
    for node in "${nodes[@]}"; do nodelb_start "$node"; done
}

outage_of_the_API_server() {
    control_down kube-apiserver
    sleep 30
    apiserver_up
    # The controllers notice it later, and see leases of nodes that are old.
    sleep 45
}

# Also without the pods of DaemonSets, and out of the load balancers: as an administrator prepares a node.
reboot_of_a_drained_node() {
    quietly kubectl label node node3 node.kubernetes.io/exclude-from-external-load-balancers=true maintenance=true
    sleep 2
    quietly kubectl drain node3 --ignore-daemonsets --delete-emptydir-data --force 2>>"$run/drain.log"
    quietly kubectl wait --for=delete pod -l "app in (host,near)" --field-selector spec.nodeName=node3 --timeout=60s
    node_halt node3
    cgroups_down node3
    ip netns delete "$prefix-node3"
    sleep 5
    node_network_up node3
    paths_up node3
    cgroups_up node3
    node_boot node3
    [ "$layout" != flannel ] || flannel_up node3
    if [ "$current" = nodelb ]; then nodelb_start node3; else kube_proxy_start node3; fi
    runtime_up node3
    kubelet_up node3
    # The Node still says Ready, from before: until the new kubelet has reported.
    sleep 10
    quietly kubectl wait --for=condition=Ready node/node3 --timeout=60s
    quietly kubectl uncordon node3
    quietly kubectl label node node3 node.kubernetes.io/exclude-from-external-load-balancers- maintenance-
    quietly kubectl rollout status daemonset/client daemonset/host daemonset/near --timeout=60s
}

outage_of_the_API_server_with_kube-proxy() { outage_of_the_API_server; }
reboot_of_a_drained_node_with_kube-proxy() { reboot_of_a_drained_node; }

# docs/kubernetes.md, the way back.
nodelb_to_kube-proxy() {
    local node
    for node in "${nodes[@]}"; do
        proxy kube-proxy "$node"
        # It answers before its first rules are in the kernel.
        sleep 5
        nodelb_mode "$node" drain
    done
}

removal_of_nodelb() {
    local node
    for node in "${nodes[@]}"; do nodelb_remove "$node"; done
}

# The controllers and the scheduler see what the API server has now, and each node has pods.
rolled_out() {
    quietly kubectl rollout restart deployment/web
    quietly kubectl rollout status deployment/web --timeout=120s
    quietly kubectl wait --for=condition=Ready nodes --all --timeout=120s
    sleep 5
    quietly kubectl wait --for=condition=Ready pods -l 'app in (near,host,client)' --timeout=120s
    sleep 10
}

hand_over() {
    directory=$results/$layout number=0
    workload_up
    current=kube-proxy
    during outage_of_the_API_server_with_kube-proxy "${nodes[@]}"
    rolled_out
    during reboot_of_a_drained_node_with_kube-proxy node1 node2
    rolled_out
    current=nodelb
    during kube-proxy_to_nodelb "${nodes[@]}"
    during upgrade_of_nodelb "${nodes[@]}"
    during kill_of_nodelb "${nodes[@]}"
    during outage_of_the_API_server "${nodes[@]}"
    rolled_out
    during reboot_of_a_drained_node node1 node2
    rolled_out
    during nodelb_to_kube-proxy "${nodes[@]}"
    during removal_of_nodelb "${nodes[@]}"
}

end() {
    local job
    for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done
    "$here/cluster.sh" down
}

rm -rf "$results"
mkdir -p "$results"
verdict=0
read -ra layouts <<<"${LAYOUTS:-routes vxlan}"
for layout in "${layouts[@]}"; do
    export layout LAYOUT=$layout
    trap end EXIT
    PROXY=kube-proxy "$here/cluster.sh" up
    hand_over
    trap - EXIT
    end
done
{
    cat <<END
# Hand-over on real nodes

<!-- generated by make handover -->

From kube-proxy (nftables mode) to $("$nodelb" version) and back on three nodes of one machine ([tests/cluster](../../tests/cluster/README.md)),
Kubernetes $("$bin/kubelet" --version | cut -d ' ' -f 2), Linux $(uname -r | grep -oE '^[0-9]+\.[0-9]+'). Clients are in pods, on nodes and outside; each flow makes 10 new
connections a second, or keeps 4 with 10 requests a second each, over TCP or UDP, to backends on the same node, on others, and
with the node's own address. A failure is an exchange without a correct answer within five seconds, ten on a long connection.
END
    for layout in "${layouts[@]}"; do
        printf '\n## Layout %s\n\n' "$layout"
        "$tool" handover "$results/$layout" "$here/expected.tsv" || verdict=1
    done
} >"$results/handover.md"
cp "$results/handover.md" "$repository/docs/development/handover.md"
cat "$results/handover.md"
exit $verdict
