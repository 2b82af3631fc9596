# shellcheck shell=bash
# Clients in pods, on nodes and outside, for handover.sh and day.sh, which source it.
# shellcheck disable=SC2154 # settings.sh sets them

# flows NAME ADDRESS [FIRST_PORT]: of every kind, to a Service of handover.yaml. Brackets around IPv6.
flows() {
    local port=${3:-80}
    printf '%s\n' "$1,new-tcp,$2:$port" "$1,long-tcp,$2:$((port + 1))" "$1,new-udp,$2:$((port + 2))" "$1,long-udp,$2:$((port + 2))"
}

workload_up() {
    sed "s|@PROBER@|$prober|" "$cluster/handover.yaml" | tee "$run/handover.yaml" | quietly kubectl apply -f -
    quietly kubectl rollout status deployment/web daemonset/host daemonset/near daemonset/client --timeout=120s
    # The address of the load balancer, and routes to the nodes.
    wait_for 30 "load balancer" in_net outside bash -c "exec 3<>/dev/tcp/$(balancer_address)/80"
    # The service proxies know all backends.
    sleep 10
}

balancer_address() { kubectl get service web -o 'jsonpath={.status.loadBalancer.ingress[0].ip}'; }

# The number of a process in the client's pod of a node, in the numbers of the node.
client_process() {
    local uid
    uid=$(kubectl get pods -l app=client --field-selector "spec.nodeName=$1" -o 'jsonpath={.items[0].metadata.uid}')
    # shellcheck disable=SC2016
    in_node "$1" bash -c 'grep -l "pod$0" /proc/[0-9]*/cgroup | head -n 1 | cut -d / -f 3' "$uid"
}

# begin PLACE COMMAND...: traffic at a place, with its counts in a file.
begin() {
    local place=$1
    shift
    "$@" >"$phase/$place.json" 2>"$phase/$place.log" </dev/null &
    clients+=($!)
}

# The flows of each place, which day.sh replaces.
pod_flows() {
    flows web 10.96.100.1
    flows web6 '[fd00:10:96::6401]'
    flows near 10.96.100.2
    flows host 10.96.100.3
}
# node_flows NODE
node_flows() {
    flows web 10.96.100.1
    flows web6 '[fd00:10:96::6401]'
    flows web-nodeport "$(node_ip4 "$1")" 30080
    flows host 10.96.100.3
}
# outside_flows LOAD_BALANCER
outside_flows() {
    flows web-node1 10.89.0.11 30080
    flows web-node2 10.89.0.12 30080
    flows near-node1 10.89.0.11 30180
    flows host-node2 10.89.0.12 30280
    flows web6-node1 '[fd00:89::11]' 30080
    flows balancer "$1" 80
}

# traffic_up DIRECTORY NODE...: at the client's pod of each of these nodes, on them, and outside.
traffic_up() {
    phase=$1
    shift
    local node process words stop=$phase/stop
    mkdir -p "$phase"
    clients=()
    for node; do
        process=$(client_process "$node")
        mapfile -t words < <(pod_flows)
        begin "pod-$node" in_node "$node" nsenter --target "$process" --net -- "$tool" traffic "$stop" "${words[@]}"
        mapfile -t words < <(node_flows "$node")
        begin "$node" in_node "$node" "$tool" traffic "$stop" "${words[@]}"
    done
    mapfile -t words < <(outside_flows "$(balancer_address)")
    begin outside in_net outside "$tool" traffic "$stop" "${words[@]}"
    sleep 1
    for process in "${clients[@]}"; do
        kill -0 "$process" 2>/dev/null || fail "A client has ended: $(cat "$phase"/*.log)"
    done
}

traffic_down() {
    local client
    touch "$phase/stop"
    for client in "${clients[@]}"; do wait "$client" || true; done
    rm "$phase/stop"
}
