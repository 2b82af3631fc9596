//! The examples below the help of each command. A test parses each of them.

pub(super) const STATUS: &str = "\
Examples:
  nodelb status                      # what is wrong on this node
  nodelb status -o json | jq .problems";
pub(super) const SERVICES: &str = "\
Examples:
  nodelb services                    # every service
  nodelb services web                # the service web, in any namespace
  nodelb services -n shop --status NoBackends";
pub(super) const FRONTENDS: &str = "\
Examples:
  nodelb frontends shop/web          # the addresses of a service
  nodelb frontends --address 10.96.7.7
  nodelb frontends --watch           # keep running and print each change";
pub(super) const BACKENDS: &str = "\
Examples:
  nodelb backends shop/web           # which backends receive traffic, and why not
  nodelb backends --address 10.1.0.1 # every service that uses an address";
pub(super) const DRAIN: &str = "\
Examples:
  nodelb drain shop/web 10.1.0.1:8080 --for 1h
  nodelb drain shop/web 10.1.0.1     # every port of the address, until nodelb undrain";
pub(super) const UNDRAIN: &str = "\
Examples:
  nodelb undrain shop/web 10.1.0.1:8080";
pub(super) const HISTORY: &str = "\
Examples:
  nodelb history shop/web            # what changed, and who changed it
  nodelb history --since 10m --limit 20
  nodelb history -o wide             # every column, with the time of day";
pub(super) const TRACE: &str = "\
Examples:
  nodelb trace 10.96.7.7:80          # where a connection goes, and why
  nodelb trace shop/web              # the same for every address of a service
  nodelb trace 10.96.7.7:80 --from pod";
pub(super) const TOP: &str = "\
Examples:
  nodelb top                         # connections per second, the busiest services first
  nodelb top shop/web                # the ports of a service
  nodelb top --once -o json";
pub(super) const RUN: &str = "\
Examples:
  nodelb run                         # as nodelb.service does
  nodelb run --datapath memory --config nodelb.toml";
pub(super) const CHECK_CONFIG: &str = "\
Examples:
  nodelb check-config                # before systemctl reload nodelb
  nodelb check-config --keys --config nodelb.toml";
pub(super) const MAPS: &str = "\
Examples:
  nodelb maps                        # what the kernel has, and how full each map is
  nodelb maps --address 10.96.7.7";
pub(super) const DIFF: &str = "\
Examples:
  nodelb diff                        # whether the kernel has what the sources ask for
  nodelb diff shop/web --live        # compare with the API server, too";
pub(super) const SOURCES: &str = "\
Examples:
  nodelb sources                     # whether each file and each watch is read without problems
  nodelb sources -o json";
pub(super) const DNS: &str = "\
Examples:
  nodelb dns                         # the state of the answer to each name
  nodelb dns -o wide";
pub(super) const APISERVERS: &str = "\
Examples:
  nodelb apiservers                  # which API server is in use, and why
  nodelb apiservers -o yaml";
pub(super) const DEVICES: &str = "\
Examples:
  nodelb devices                     # where packets from outside the node are translated
  nodelb devices -o wide";
pub(super) const CONNECTIONS: &str = "\
Examples:
  nodelb connections shop/web        # which clients outside the node have which backend
  nodelb connections --address 203.0.113.3 --limit 20";
pub(super) const DROPS: &str = "\
Examples:
  nodelb drops                       # why packets were dropped or answered
  nodelb drops shop/web";
pub(super) const CONFIG: &str = "\
Examples:
  nodelb config                      # each key with its value and origin
  nodelb config -o json";
pub(super) const DIAGNOSE: &str = "\
Examples:
  nodelb diagnose shop/web           # the likely cause first, with a fix
  nodelb diagnose shop/web --no-connect -o json";
pub(super) const WATCH: &str = "\
Examples:
  nodelb watch                       # every change at the API server
  nodelb watch shop/web
  nodelb watch --packets --dropped   # packets from outside the node that get no backend";
pub(super) const CLEANUP: &str = "\
Examples:
  nodelb cleanup                     # after systemctl stop nodelb
  nodelb cleanup --pin-directory /sys/fs/bpf/nodelb";
pub(super) const METRICS: &str = "\
Examples:
  nodelb metrics                     # the same as curl localhost:9890/metrics
  nodelb metrics --admin /run/nodelb/nodelb.sock";
pub(super) const VERSION: &str = "\
Examples:
  nodelb version";
pub(super) const COMPLETIONS: &str = "\
Examples:
  nodelb completions bash > /etc/bash_completion.d/nodelb
  nodelb completions zsh";
pub(super) const NODELB: &str = "\
Examples:
  nodelb status                      # what is wrong on this node
  nodelb frontends shop/web          # the addresses of a service, and their backends
  nodelb trace 10.96.7.7:80          # where a connection goes, and why
  nodelb diagnose shop/web           # why a service fails";
