#!/bin/bash
# A network around the guest, which is the node: a client and a second node behind a router, and a pod. Each is a network
# namespace, with IPv4 and IPv6. The router sends the addresses of services to the node.
#
#   client 203.0.113.10 -- router -- uplink 203.0.113.2 (the guest) -- pod 203.0.113.34
#                            |
#                            `------ node-b 203.0.113.18, with its pod 203.0.113.66

main() {
    set -eu
    local name
    sysctl -q net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    for name in router client node-b pod; do
        ip netns add $name
        ip -n $name link set lo up
        ip netns exec $name sysctl -q net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    done
    ip link add uplink type veth peer name node-a netns router
    ip link add pod type veth peer name eth0 netns pod
    device "" uplink 203.0.113.2/29 2001:db8:1::2/64
    device router node-a 203.0.113.1/29 2001:db8:1::1/64
    device "" pod 203.0.113.33/30 2001:db8:a1::1/64
    device pod eth0 203.0.113.34/30 2001:db8:a1::2/64
    default_route "" 203.0.113.1 2001:db8:1::1
    default_route pod 203.0.113.33 2001:db8:a1::1
    behind_router client 203.0.113.10/29 203.0.113.9 2001:db8:2::10/64 2001:db8:2::1
    behind_router node-b 203.0.113.18/29 203.0.113.17 2001:db8:3::2/64 2001:db8:3::1
    ip -n node-b address add 203.0.113.66/32 dev lo
    ip -n node-b address add 2001:db8:b1::2/128 dev lo
    ip -n router route add 203.0.113.32/27 via 203.0.113.2
    ip -n router route add 2001:db8:a1::/64 via 2001:db8:1::2
    ip -n router route add 203.0.113.64/27 via 203.0.113.18
    ip -n router route add 2001:db8:b1::/64 via 2001:db8:3::2
    ip -n router route add 198.51.100.0/24 via 203.0.113.2
    ip -n router route add 2001:db8:f::/48 via 2001:db8:1::2
    backend pod local 203.0.113.34
    backend pod local '[2001:db8:a1::2]'
    backend node-b remote 203.0.113.66
    backend node-b remote '[2001:db8:b1::2]'
}

# device NAMESPACE DEVICE IPV4 IPV6: gives it addresses. The empty namespace is the guest's.
device() {
    run "$1" ip address add "$3" dev "$2"
    run "$1" ip address add "$4" dev "$2" nodad
    run "$1" ip link set "$2" up
}

default_route() {
    run "$1" ip route add default via "$2"
    run "$1" ip -6 route add default via "$3"
}

# behind_router NAMESPACE IPV4 ROUTER4 IPV6 ROUTER6
behind_router() {
    ip -n router link add "$1" type veth peer name eth0 netns "$1"
    device router "$1" "$3/29" "$5/64"
    device "$1" eth0 "$2" "$4"
    default_route "$1" "$3" "$5"
}

# backend NAMESPACE NAME ADDRESS
backend() {
    systemd-run --quiet ip netns exec "$1" "$PWD/nodelb-prober" backend --name "$2" --tcp "$3:8080" --udp "$3:8080" \
        --tcp-lines "$3:8081"
}

run() {
    local namespace=$1
    shift
    if [ -z "$namespace" ]; then "$@"; else ip netns exec "$namespace" "$@"; fi
}

# outside.sh uses the functions.
[ "${BASH_SOURCE[0]}" != "$0" ] || main
