# shellcheck shell=bash
# shellcheck disable=SC2154 # settings.sh sets them
# The layout flannel: a network plugin that is not ours makes the tunnels, routes, bridge and masquerading of the nodes. The
# scripts only start it, as a DaemonSet would. Sourced by cluster.sh and handover.sh.

# flannel_files NODE: the configuration of flanneld, and the one of its CNI plugin, which runs the plugin bridge.
flannel_files() {
    cat >"$run/$1/flannel.json" <<END
{"Network":"${pod_cidrs%,*}","EnableIPv6":true,"IPv6Network":"${pod_cidrs#*,}","EnableNFTables":${FLANNEL_NFTABLES:-false},
 "Backend":{"Type":"vxlan"}}
END
    cat >"$run/$1/pods.conflist" <<END
{"cniVersion":"1.0.0","name":"pods","plugins":[
 {"type":"flannel","delegate":{"isDefaultGateway":true,"hairpinMode":true}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true}
]}
END
}

flannel_up() {
    start "$1" flanneld env "NODE_NAME=$1" "$bin/flanneld" --kube-subnet-mgr --kubeconfig-file="$run/flannel.kubeconfig" \
        --net-config-path="$run/$1/flannel.json" --ip-masq --healthz-ip=127.0.0.1 --healthz-port=10099
    wait_for 60 "$1: flanneld" in_node "$1" curl -sf --noproxy '*' http://127.0.0.1:10099/readyz
}
