#!/bin/bash
# Two backends and room for an apiserver, on addresses that are the guest's own, or the network of network.sh. They stay
# when the unit has ended.
set -eu
cd "$(dirname "$0")"
ip address add 192.0.2.11/32 dev lo
if grep -q nodelb.run=outside /proc/cmdline; then
    exec ./network.sh
fi
for number in 1 2; do
    ip address add 192.0.2.$number/32 dev lo
    systemd-run --quiet --unit=backend-$number /payload/nodelb-prober backend --name web-$number --tcp 192.0.2.$number:8080
done
