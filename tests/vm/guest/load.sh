#!/bin/bash
# Loads every variant of the BPF programs on the guest's kernel, and starts nodelb as on nodes without packet programs. Runs
# in the guest as root under systemd, with the programs of the tests, not with a package.
set -u
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/vm/guest/check.sh
. ./check.sh
# shellcheck source=tests/vm/guest/look.sh
. ./look.sh

unit=load.service
static=198.51.100.7:80
PATH=$PWD:$PATH

main() {
    ./packets.sh variants
    mkdir -p /etc/nodelb/services.d
    cp shop.toml /etc/nodelb/services.d
    starts 'packets.mode = "off"' 'No problems found'
    # No ports are left for packets, so there are no maps for them.
    starts 'datapath.nodeport-range = "1-65535"' 'packet programs cannot be started'
    # The map half_open takes 300 MB.
    starts 'packets.max-handshakes = 900000' 'does not create the map half_open' --property=MemoryMax=200M
}

# starts SETTING PATTERN [PROPERTY]: the daemon starts with a configuration of one line, and status says the pattern.
starts() {
    echo "$1" >/etc/nodelb/nodelb.toml
    check "nodelb check-config, with $1" nodelb check-config
    check "the daemon starts" systemd-run --quiet --unit=$unit --property=Type=notify "${@:3}" "$PWD/nodelb" run
    check "nodelb status says: $2" within 60 says "$2" status
    check "connections reach both backends" reaches_both
    check "the daemon stops" systemctl stop $unit
    check "nodelb cleanup" nodelb cleanup
}

main
echo end
systemctl --no-block start poweroff.target
