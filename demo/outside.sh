# shellcheck shell=bash disable=SC2154,SC2317 # the checks are called by name; the rest is in demo/main.sh
# Part three: a client outside the node, and a backend on another node. Their processes are in a cgroup to which no
# program of nodelb is attached, and in network namespaces of their own:
#
#   client 203.0.113.3 ──┐
#                        ├── switch ── uplink of the node 203.0.113.2 ── pod 203.0.113.34
#   node-b 203.0.113.4 ──┘

from_outside() {
    node_port=203.0.113.2:30080
    balancer=198.51.100.80:80
    join_network
    without_packets
    with_packets
    kill_with_clients
    step "13. Stop and cleanup"
    leave_outside
}

# outside NAMESPACE COMMAND...: runs the command on another machine.
outside() {
    (echo 0 >"$others/cgroup.procs" && exec nsenter --net="/run/netns/$1" "${@:2}")
}

# port NAME ADDRESS NAMESPACE: connects a machine to the switch.
port() {
    ip -n switch link add "$1" type veth peer name uplink netns "$3"
    ip -n switch link set "$1" master bridge up
    ip -n "$3" address add "$2/29" dev uplink
    ip -n "$3" link set uplink up
}

join_network() {
    local name
    for name in node switch client node-b pod; do
        if [ "$name" = node ]; then ip netns attach node $$; else ip netns add "$name"; fi
        ip -n "$name" link set lo up
    done
    ip -n switch link add bridge type bridge
    ip -n switch link set bridge up
    port node 203.0.113.2 node
    port client 203.0.113.3 client
    port node-b 203.0.113.4 node-b
    ip -n client route add 198.51.100.0/24 via 203.0.113.2
    ip link add pod type veth peer name eth0 netns pod
    ip address add 203.0.113.33/30 dev pod
    ip link set pod up
    ip -n pod address add 203.0.113.34/30 dev eth0
    ip -n pod link set eth0 up
    ip -n pod route add default via 203.0.113.33
    echo 1 >/proc/sys/net/ipv4/ip_forward
    nsenter --net=/run/netns/pod nodelb-prober backend --name pod --tcp 203.0.113.34:8080 &
    outside node-b nodelb-prober backend --name node-b --tcp 203.0.113.4:8080 &
    disown -a
}

# configure_outside MODE: writes the configuration and the objects of Service shop/front.
configure_outside() {
    mkdir -p "$dir/outside.d" "$dir/outside-state"
    cat >"$dir/nodelb.toml" <<END
[node]
name = "node-a"
nodeport-addresses = ["${node_port%:*}"]
[files]
directory = "$dir/outside.d"
[state]
directory = "$dir/outside-state"
[datapath]
cgroup = "$cgroup"
[packets]
mode = "$1"
# Without a default route, a veth device does not count as one that leads to other machines.
devices = ["uplink"]
END
    cp demo/outside/*.yaml "$dir/outside.d/"
}

from_client() { outside client nodelb-prober connect --to "$@"; }
no_client() { ! from_client "$1"; }

# both_backends TEXT: both backends answered, and no connection failed.
both_backends() { [[ $1 == *"; 0 failed"* && $1 == *"node-b "* && $1 == *"pod "* ]]; }

attached() { get /devices | grep -E "^uplink .* uplink +attached "; }

without_packets() {
    step "10. A client outside the node, with packets.mode = \"off\""
    configure_outside off
    start_nodelb
    check "nodelb is ready" soon ready
    ready >/dev/null 2>&1 || verdict
    check "the node itself connects to the NodePort $node_port" soon connect "$node_port"
    check "the node itself connects to the load balancer address $balancer" soon connect "$balancer"
    check "the client cannot connect to the NodePort: $(from_client "$node_port")" no_client "$node_port"
    check "the client cannot connect to the load balancer address: $(from_client "$balancer")" no_client "$balancer"
}

with_packets() {
    local result address
    step "11. packets.mode = \"on\", and a restart"
    configure_outside on
    kill -TERM "$nodelb"
    check "SIGTERM stops nodelb" soon gone
    start_nodelb
    check "nodelb is ready" soon ready
    check "its programs are attached to the device uplink" soon attached
    for address in "$node_port" "$balancer"; do
        result=$(from_client "$address" -n 200)
        check "the client connects to $address: $result" both_backends "$result"
    done
    say "The pod on the node sees the client's address. node-b sees the address of the node (Source-Address):"
    show nodelb connections --limit 6
}

kill_with_clients() {
    step "12. kill -9 during 500 connections per second of the client"
    peer kube-proxy "keeps connections in conntrack: conntrack -F or a firewall that reloads its rules ends them. nodelb does not use it."
    start_traffic "$balancer" 500 outside client
    sleep 1
    kill -9 "$nodelb"
    check "nodelb is dead" soon gone
    sleep 1
    check "the client connects to the NodePort without nodelb" from_client "$node_port" -n 100
    start_nodelb
    check "nodelb is started again and is ready" soon ready
    sleep 1
    end_traffic
    check "the client's traffic during this act: $traffic" unharmed "$traffic"
    remember outside "$traffic"
}

leave_outside() {
    kill -TERM "$nodelb"
    check "SIGTERM stops nodelb" soon gone
    check "the client's connections continue to work without nodelb" from_client "$balancer" -n 100
    show nodelb cleanup --config "$dir/nodelb.toml"
    check "after cleanup, nothing is pinned" no_pins
    check "after cleanup, the client cannot connect: $(from_client "$balancer")" no_client "$balancer"
}
