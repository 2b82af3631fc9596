#!/bin/bash
# Two backends and room for an apiserver, on addresses that are the guest's own. They stay when the unit has ended.
set -eu
ip address add 192.0.2.11/32 dev lo
for number in 1 2; do
    ip address add 192.0.2.$number/32 dev lo
    systemd-run --quiet --unit=backend-$number /payload/nodelb-prober backend --name web-$number --tcp 192.0.2.$number:8080
done
