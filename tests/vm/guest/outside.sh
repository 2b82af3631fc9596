#!/bin/bash
# Clients outside the node, while nodelb takes the place of kube-proxy, and during the rest of its life until purge. Runs
# in the guest as root under systemd, in the network of network.sh.
set -u
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/vm/guest/check.sh
. ./check.sh
# shellcheck source=tests/vm/guest/look.sh
. ./look.sh
# shellcheck source=tests/vm/guest/clients.sh
. ./clients.sh
# shellcheck source=tests/vm/guest/network.sh
. ./network.sh

memory=/var/lib/life
unit=nodelb.service
# Of service local, which has its backend on this node, and of service remote.
addresses_of_local=(198.51.100.101:80 '[2001:db8:f:1::1]:80' 203.0.113.2:30001 '[2001:db8:1::2]:30001')
addresses_of_remote=(198.51.100.102:80 '[2001:db8:f:1::2]:80' 203.0.113.2:30002 '[2001:db8:1::2]:30002')

life() {
    # The clients are processes of this machine, and no hook may translate what they send.
    mkdir -p /sys/fs/cgroup/outside
    echo $$ >/sys/fs/cgroup/outside/cgroup.procs
    if [ ! -e $memory ]; then
        mkdir $memory
        warnings >$memory/warnings
        kube_proxy_serves
        nodelb_is_installed_next_to_it
        nodelb_takes_over
        kube_proxy_goes
        everything_is_reached
        a_device_comes_later
        a_vlan_on_a_bond_is_an_uplink
        a_tap_device_serves_a_virtual_machine
        is_replaced_under_outside_load
        check "no warning from systemd or the kernel" no_new_warning
        systemctl --no-block start reboot.target
    else
        comes_back
        is_purged
        check "no warning from systemd or the kernel" no_new_warning
        ./packets.sh
        echo end
        systemctl --no-block start poweroff.target
    fi
}

kube_proxy_serves() {
    check "the rules of kube-proxy" nft -f kube-proxy.nft
    # The first packets wait for neighbours.
    check "clients reach every address through kube-proxy" within 60 all_are_reached
    systemd-run --quiet --unit=apiserver "$PWD/nodelb-apiserver" --listen 192.0.2.11:6443 --directory $memory/k8s \
        --service-cidr 198.51.100.0/24 --service-cidr 2001:db8:f::/64 --apply "$PWD/outside.yaml"
    check "an apiserver starts" within 60 test -s $memory/k8s/nodelb.kubeconfig
    # Connections for the whole way from kube-proxy to nodelb.
    begin_load
}

nodelb_is_installed_next_to_it() {
    check "apt install" apt-get install -q -y ./first.deb
    install -D -m 0600 $memory/k8s/nodelb.kubeconfig /etc/credstore/nodelb.kubeconfig
    sed -i 's|^kubeconfig = .*|kubeconfig = "credential:nodelb.kubeconfig"|' /etc/nodelb/nodelb.toml
    # The cgroup of the daemon, without that of the clients.
    sed -i 's|^cgroup = .*|cgroup = "/sys/fs/cgroup/system.slice"|' /etc/nodelb/nodelb.toml
    # A veth device with a namespace behind it is an uplink only if it has the default route, or is named.
    sed -i 's|^devices = \["auto"\]|devices = ["auto", "second", "tagged"]|' /etc/nodelb/nodelb.toml
    sed -i 's|^pod-devices = .*|pod-devices = ["tap*"]|' /etc/nodelb/nodelb.toml
    set_mode auto
    check "nodelb check-config" nodelb check-config
    check "systemctl enable --now" enable_now
    check "it is ready" within 60 is_ready
    check "it has the services" within 60 says '^198.51.100.101:80/TCP .*OK' nodelb frontends
    check "nodelb devices: off, because of kube-proxy" within 60 says '^off .*nftables table kube-proxy' nodelb devices
    check "nodelb status names kube-proxy" within 30 says 'kube-proxy' status
    check "no program is at a device" is_not has_device_programs uplink
    check "kube-proxy serves everything" all_are_reached
    check_load "nodelb is installed next to kube-proxy"
}

enable_now() {
    systemctl enable -q --now $unit || { journalctl -b --no-pager -o short-monotonic -u $unit; return 1; }
}

# As docs/kubernetes.md describes it.
nodelb_takes_over() {
    set_mode on
    check "systemctl reload, with packets.mode on" systemctl reload $unit
    check "nodelb devices: on" within 60 says "^on +$hooks " nodelb devices
    check "programs are at the uplink" within 30 has_device_programs uplink
    check "the daemon has no capability" has_capabilities "$(main_pid)" 0
    check "the ports of connections that kube-proxy has made are known" within 10 knows_foreign_ports
    check "nodelb translates new connections" within 30 says '198.51.100.101:80/TCP .*stack' \
        nodelb connections shop/local
    check "to other nodes, too" within 30 says '203.0.113.2:30002/TCP .*redirect' nodelb connections shop/remote
    check_load "nodelb takes over"
}

# Debian builds nf_conntrack as a module, which programs cannot ask.
knows_foreign_ports() {
    bpftool map dump name foreign_ports | grep -q key
}

kube_proxy_goes() {
    check "the rules of kube-proxy are removed" nft 'delete table ip kube-proxy; delete table ip6 kube-proxy'
    sleep 3
    check_load "kube-proxy goes"
    end_load "from kube-proxy to nodelb"
}

everything_is_reached() {
    local proto address
    for proto in tcp udp; do
        for address in "${addresses_of_local[@]}"; do
            check "$proto to $address, backend on this node" reached "$address" $proto local
        done
        for address in "${addresses_of_remote[@]}"; do
            check "$proto to $address, backend on another node" reached "$address" $proto remote
        done
    done
}

a_device_comes_later() {
    ip link add second type veth peer name node-a2 netns router
    ip address add 203.0.113.42/30 dev second
    ip link set second up
    ip -n router address add 203.0.113.41/30 dev node-a2
    ip -n router link set node-a2 up
    check "a device that comes later has programs" within 10 has_device_programs second
    ip -n router route replace 198.51.100.0/24 via 203.0.113.42
    check "a client is served by it" reached 198.51.100.101:80 tcp local
    check "also with a backend on another node" reached 198.51.100.102:80 tcp remote
    ip -n router route replace 198.51.100.0/24 via 203.0.113.2
    ip link del second
    check "the device is forgotten" within 30 is_not says '^second ' nodelb devices
}

# Two cables to the router, as a bond, and a VLAN on it with the address.
a_vlan_on_a_bond_is_an_uplink() {
    local cable verdict=0
    ip link add trunk type bond mode active-backup miimon 100
    ip -n router link add trunk type bond mode active-backup miimon 100
    for cable in 1 2; do
        ip link add cable$cable type veth peer name cable$cable netns router
        ip link set cable$cable master trunk
        ip -n router link set cable$cable master trunk
    done
    ip link set trunk up
    ip -n router link set trunk up
    ip link add link trunk name tagged type vlan id 100
    ip -n router link add link trunk name tagged type vlan id 100
    device "" tagged 203.0.113.46/30 2001:db8:4::2/64
    device router tagged 203.0.113.45/30 2001:db8:4::1/64
    check "a VLAN on a bond has programs" within 20 has_device_programs tagged
    ip -n router route replace 198.51.100.0/24 via 203.0.113.46
    ip -n router route replace 2001:db8:f::/48 via 2001:db8:4::2
    reached_by "a VLAN on a bond"
    # The client keeps its connection while the bond changes to the other cable.
    sleep 8 | client keep --to 198.51.100.102:81 -n 2 --json >"$memory/bond" &
    sleep 3
    ip link set cable1 down
    wait $! || verdict=$?
    check "connections survive a change of the bond's cable: $(<"$memory/bond")" test $verdict = 0
    reached_by "the other cable of the bond"
    ip -n router route replace 198.51.100.0/24 via 203.0.113.2
    ip -n router route replace 2001:db8:f::/48 via 2001:db8:1::2
    ip link del tagged
    # The bond has the address of the first cable, which therefore leaves last.
    ip link del cable2
    ip link del cable1
    ip link del trunk
    ip -n router link del trunk
}

# A namespace behind a tap device, as a virtual machine is: its packets come from a program, here socat.
a_tap_device_serves_a_virtual_machine() {
    ip netns add machine
    systemd-run --quiet --unit=machine --property=SuccessExitStatus=143 socat TUN,tun-type=tap,tun-name=tap0,iff-no-pi \
        EXEC:"ip netns exec machine socat TUN\\,tun-type=tap\\,tun-name=eth0\\,iff-no-pi STDIO"
    check "the tap device comes" within 20 test -e /sys/class/net/tap0
    check "the device of the machine comes" within 20 ip -n machine link show eth0
    device "" tap0 203.0.113.49/30 2001:db8:5::1/64
    device machine eth0 203.0.113.50/30 2001:db8:5::2/64
    default_route machine 203.0.113.49 2001:db8:5::1
    ip -n router route add 203.0.113.48/30 via 203.0.113.2
    ip -n router route add 2001:db8:5::/64 via 2001:db8:1::2
    check "a tap device of packets.pod-devices has programs" within 20 has_device_programs tap0
    check "the machine reaches a service, backend on this node" within 20 machine_reaches 198.51.100.101:80 local
    check "backend on another node" within 20 machine_reaches 198.51.100.102:80 remote
    check "over IPv6" within 20 machine_reaches '[2001:db8:f:1::2]:80' remote
    systemctl stop machine
    ip netns del machine
}

machine_reaches() {
    local output
    output=$(ip netns exec machine ./nodelb-prober connect --to "$1" -n 3 --json) || { echo "$output"; return 1; }
    [[ $output == *"\"$2\":3"* ]] || { echo "$output"; return 1; }
}

# reached_by NAME
reached_by() {
    local proto
    for proto in tcp udp; do
        check "$1: $proto, backend on this node" within 20 reached 198.51.100.101:80 $proto local
        check "$1: $proto, backend on another node" reached 198.51.100.102:80 $proto remote
        check "$1: $proto over IPv6" within 20 reached '[2001:db8:f:1::2]:80' $proto remote
    done
}

is_replaced_under_outside_load() {
    begin_load
    check "systemctl restart" systemctl restart $unit
    check_load "systemctl restart"
    check "upgrade of the package" apt-get install -q -y ./next.deb
    check "the new version runs" runs_version_of next.deb
    check_load "upgrade of the package"
    check "kill -9, and systemd starts it again" is_killed
    check "it is ready" within 60 is_ready
    sleep 2
    check_load "kill -9"
    end_load "restart, upgrade and kill"
}

comes_back() {
    check "without an apiserver nodelb is ready" within 60 systemctl is-active $unit
    check "NodePorts are served as remembered, before an apiserver answers" within 60 \
        reached 203.0.113.2:30001 tcp local
    check "every address, too" all_are_reached
    check "programs are at the uplink" has_device_programs uplink
}

is_purged() {
    check "systemctl stop" systemctl stop $unit
    check "without the daemon, every address is served" all_are_reached
    check "apt purge" apt-get purge -q -y nodelb
    check "no client is served any more" is_not reached 203.0.113.2:30001 tcp local
    check "no program, link or pin is left" within 20 no_trace_in_the_kernel
    check "no program is loaded" within 20 is_not says ' (connect4|packet_in|packet_out) ' bpftool prog show
    check "no program is at the uplink" is_not has_device_programs uplink
    check "no qdisc is left" is_not says clsact tc qdisc show
}

life
