# shellcheck shell=bash
# shellcheck disable=SC2154 # settings.sh sets them
# Network namespaces: a router (with the control plane), a client outside behind it, and the nodes. Sourced by cluster.sh.

ip_in() { local net=$1; shift; do_ ip -n "$prefix-$net" "$@"; }
sysctl_in() { local net=$1; shift; in_net "$net" sysctl -qw "$@"; }

# link ROUTER_DEVICE NET ADDRESS4/LENGTH ADDRESS6/LENGTH GATEWAY4 GATEWAY6 MAC: a cable from the router to a namespace.
link() {
    do_ ip netns add "$prefix-$2"
    ip_in "$2" link set lo up
    # A machine has the same address after a reboot.
    ip_in router link add "$1" type veth peer name eth0 address "$7" netns "$prefix-$2"
    sysctl_in router "net.ipv6.conf.$1.accept_dad=0"
    sysctl_in "$2" net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.eth0.accept_dad=0
    ip_in "$2" address add "$3" dev eth0
    ip_in "$2" address add "$4" dev eth0 nodad
    ip_in router link set "$1" up
    ip_in "$2" link set eth0 up
    ip_in "$2" route add default via "$5"
    ip_in "$2" -6 route add default via "$6"
}

router_up() {
    do_ ip netns add "$prefix-router"
    ip_in router link set lo up
    # A fixed address: otherwise it changes with the devices in it.
    ip_in router link add br0 address 02:00:5e:00:00:01 type bridge
    sysctl_in router net.ipv6.conf.br0.accept_dad=0
    ip_in router link set br0 up
    ip_in router address add "$api/24" dev br0
    ip_in router address add fd00:89::1/64 dev br0 nodad
    # As a router with several paths in a data centre: by addresses and ports.
    sysctl_in router net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
    link outside outside 192.0.2.2/24 2001:db8:2::2/64 192.0.2.1 2001:db8:2::1 02:00:5e:00:00:02
    ip_in router address add 192.0.2.1/24 dev outside
    ip_in router address add 2001:db8:2::1/64 dev outside nodad
}

# Connections of pods to addresses outside the cluster leave with the node's address, and a port at random: as with flannel.
masquerade() {
    cat <<END
table ip pods {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip saddr $(pod_cidr4 "$1") ip daddr != ${pod_cidrs%,*} oifname "eth0" masquerade fully-random
    }
}
table ip6 pods {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip6 saddr $(pod_cidr6 "$1") ip6 daddr != ${pod_cidrs#*,} oifname "eth0" masquerade fully-random
    }
}
END
}

node_network_up() {
    local node=$1
    link "$node" "$node" "$(node_ip4 "$node")/24" "$(node_ip6 "$node")/64" "$api" fd00:89::1 \
        "02:00:5e:00:00:1${node#node}"
    ip_in router link set "$node" master br0
    sysctl_in "$node" net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.bridge.bridge-nf-call-iptables=1 \
        net.bridge.bridge-nf-call-ip6tables=1
    # Flannel's own business. The router does not know the pods then: what leaves a node with their addresses is lost.
    [ "$layout" != flannel ] || return 0
    masquerade "$node" >"$run/$node/masquerade.nft"
    in_net "$node" nft -f "$run/$node/masquerade.nft"
    ip_in router route replace "$(pod_cidr4 "$node")" via "$(node_ip4 "$node")"
    ip_in router -6 route replace "$(pod_cidr6 "$node")" via "$(node_ip6 "$node")"
    [ "$layout" = routes ] || tunnels_up "$node"
}

# Deterministic, so that a node knows the addresses of the others before they exist.
tunnel_mac() { echo "02:00:5e:0$2:00:0${1#node}"; }

tunnels_up() {
    local node=$1
    ip_in "$node" link add flannel.1 address "$(tunnel_mac "$node" 4)" type vxlan id 1 dev eth0 \
        local "$(node_ip4 "$node")" dstport 8472 nolearning
    ip_in "$node" address add "$(pod_cidr4 "$node" | sed 's,/.*,/32,')" dev flannel.1
    ip_in "$node" link set flannel.1 mtu 1450 up
    ip_in "$node" link add flannel-v6.1 address "$(tunnel_mac "$node" 6)" type vxlan id 1 dev eth0 \
        local "$(node_ip6 "$node")" dstport 8472 nolearning
    ip_in "$node" address add "$(pod_cidr6 "$node" | sed 's,/.*,/128,')" dev flannel-v6.1 nodad
    ip_in "$node" link set flannel-v6.1 mtu 1430 up
}

# path NODE OTHER: how packets to pods of the other node leave this one.
path() {
    local node=$1 other=$2 first4 first6
    if [ "$layout" = routes ]; then
        ip_in "$node" route replace "$(pod_cidr4 "$other")" via "$(node_ip4 "$other")"
        ip_in "$node" -6 route replace "$(pod_cidr6 "$other")" via "$(node_ip6 "$other")"
        return
    fi
    first4=$(pod_cidr4 "$other" | sed 's,/.*,,')
    first6=$(pod_cidr6 "$other" | sed 's,/.*,,')
    ip_in "$node" neighbour replace "$first4" lladdr "$(tunnel_mac "$other" 4)" dev flannel.1 nud permanent
    do_ bridge -n "$prefix-$node" fdb append "$(tunnel_mac "$other" 4)" dev flannel.1 dst "$(node_ip4 "$other")"
    ip_in "$node" route replace "$(pod_cidr4 "$other")" via "$first4" dev flannel.1 onlink
    ip_in "$node" -6 neighbour replace "$first6" lladdr "$(tunnel_mac "$other" 6)" dev flannel-v6.1 nud permanent
    do_ bridge -n "$prefix-$node" fdb append "$(tunnel_mac "$other" 6)" dev flannel-v6.1 dst "$(node_ip6 "$other")"
    ip_in "$node" -6 route replace "$(pod_cidr6 "$other")" via "$first6" dev flannel-v6.1 onlink
}

paths_up() {
    local other
    [ "$layout" != flannel ] || return 0
    for other in "${nodes[@]}"; do
        [ "$1" = "$other" ] || path "$1" "$other"
    done
}

network_down() {
    local net
    for net in "${nodes[@]}" outside router; do
        if [ -n "${DRY_RUN:-}" ] || [ -e "/run/netns/$prefix-$net" ]; then do_ ip netns delete "$prefix-$net"; fi
    done
}
