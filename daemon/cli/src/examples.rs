//! The examples below the help of each command. A test parses each of them.

macro_rules! examples {
    ($($command:ident: $($line:literal)+;)+) => {
        $(pub(super) const $command: &str = concat!("Examples:", $("\n  ", $line),+);)+
    };
}

examples! {
    STATUS:
        "nodelb status                      # what is wrong on this node"
        "nodelb status --watch"
        "nodelb status -o json | jq .problems";
    SERVICES:
        "nodelb services                    # every service"
        "nodelb services web                # the service web, in any namespace"
        "nodelb services -n shop --status NoBackends";
    FRONTENDS:
        "nodelb frontends shop/web          # the addresses of a service"
        "nodelb frontends --address 10.96.7.7"
        "nodelb frontends --watch           # keep running and print each change";
    BACKENDS:
        "nodelb backends shop/web           # which backends receive traffic, and why not"
        "nodelb backends --address 10.1.0.1 # every service that uses an address";
    DRAIN:
        "nodelb drain shop/web 10.1.0.1:8080 --for 1h"
        "nodelb drain shop/web 10.1.0.1     # every port of the address, until nodelb undrain"
        "nodelb drain 10.1.0.1 --wait       # a host, for all services, before its reboot";
    UNDRAIN:
        "nodelb undrain shop/web 10.1.0.1:8080"
        "nodelb undrain 10.1.0.1            # for all services";
    ACCEPT:
        "nodelb accept                      # what nodelb status says is held back";
    HISTORY:
        "nodelb history shop/web            # what changed, and who changed it"
        "nodelb history --since 10m --limit 20"
        "nodelb history --since 03:10 --until 03:15 --times"
        "nodelb history -o wide             # every column, with the time of day";
    TRACE:
        "nodelb trace 10.96.7.7:80          # where a connection goes, and why"
        "nodelb trace shop/web              # the same for every address of a service"
        "nodelb trace 10.96.7.7:80 --from pod";
    TOP:
        "nodelb top                         # connections per second, the busiest services first"
        "nodelb top shop/web                # the ports of a service"
        "nodelb top --once -o json";
    RUN:
        "nodelb run                         # as nodelb.service does"
        "nodelb run --datapath memory --config nodelb.toml";
    CHECK_CONFIG:
        "nodelb check-config                # before systemctl reload nodelb"
        "nodelb check-config --keys --config nodelb.toml";
    MAPS:
        "nodelb maps                        # what the kernel has, and how full each map is"
        "nodelb maps --address 10.96.7.7";
    DIFF:
        "nodelb diff                        # whether the kernel has what the sources ask for"
        "nodelb diff shop/web --live        # compare with the API server, too";
    SOURCES:
        "nodelb sources                     # whether each file and each watch is read without problems"
        "nodelb sources -o json";
    DNS:
        "nodelb dns                         # the state of the answer to each name"
        "nodelb dns -o wide";
    APISERVERS:
        "nodelb apiservers                  # which API server is in use, and why"
        "nodelb apiservers -o yaml";
    DEVICES:
        "nodelb devices                     # where packets from outside the node are translated"
        "nodelb devices -o wide";
    CONNECTIONS:
        "nodelb connections shop/web        # which clients outside the node have which backend"
        "nodelb connections --address 203.0.113.3 --limit 20";
    DROPS:
        "nodelb drops                       # why packets were dropped or answered"
        "nodelb drops shop/web";
    CONFIG:
        "nodelb config                      # each key with its value and origin"
        "nodelb config -o json";
    DIAGNOSE:
        "nodelb diagnose shop/web           # the likely cause first, with a fix"
        "nodelb diagnose shop/web --no-connect -o json";
    WATCH:
        "nodelb watch                       # every change at the API server"
        "nodelb watch shop/web"
        "nodelb watch --packets --dropped   # packets from outside the node that get no backend";
    CLEANUP:
        "nodelb cleanup                     # after systemctl stop nodelb"
        "nodelb cleanup --pin-directory /sys/fs/bpf/nodelb";
    METRICS:
        "nodelb metrics                     # the same as curl localhost:9890/metrics"
        "nodelb metrics --admin /run/nodelb/nodelb.sock";
    VERSION:
        "nodelb version";
    COMPLETIONS:
        "nodelb completions bash > /etc/bash_completion.d/nodelb"
        "nodelb completions zsh";
    NODELB:
        "nodelb status                      # what is wrong on this node"
        "nodelb frontends shop/web          # the addresses of a service, and their backends"
        "nodelb trace 10.96.7.7:80          # where a connection goes, and why"
        "nodelb diagnose shop/web           # why a service fails";
}
