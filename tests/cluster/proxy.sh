# shellcheck shell=bash
# The service proxy of a node: nodelb or kube-proxy. PACKETS is nodelb's packets.mode. Sourced by the other scripts.
# shellcheck disable=SC2154 # settings.sh sets them

token() { kubectl -n kube-system get secret nodelb -o 'jsonpath={.data.token}' | grep -q .; }

# As docs/kubernetes.md says. Upstream's test of external IPs needs the network.
nodelb_files() {
    local node=$1
    mkdir -p "$run/$node/services.d"
    cat >"$run/$node/nodelb.toml" <<END
[kubernetes]
token-file = "$run/$node/token"
ca-file = "$run/$node/ca.crt"
apiserver = [
    { address = "$api:6443", tls-server-name = "kubernetes" },
]
[files]
directory = "$run/$node/services.d"
[datapath]
external-ips = ["203.0.113.0/24"]
[packets]
mode = "${PACKETS:-auto}"
END
    [ -n "${DRY_RUN:-}" ] || nodelb_credentials "$node"
}

nodelb_credentials() {
    (
        umask 077
        kubectl -n kube-system get secret nodelb -o 'jsonpath={.data.token}' | base64 -d >"$run/$1/token"
        kubectl -n kube-system get secret nodelb -o 'jsonpath={.data.ca\.crt}' | base64 -d >"$run/$1/ca.crt"
    )
}

# The daemon is a copy, so that an upgrade can replace it.
nodelb_start() {
    [ -e "$run/$1/nodelb" ] || do_ cp "$nodelb" "$run/$1/nodelb"
    start "$1" nodelb "$run/$1/nodelb" run --config "$run/$1/nodelb.toml"
    wait_for 30 "$1: nodelb" in_node "$1" curl -sf --noproxy '*' http://localhost:9890/readyz
}

# nodelb_mode NODE MODE: changes packets.mode.
nodelb_mode() {
    sed -i "s/^mode = .*/mode = \"$2\"/" "$run/$1/nodelb.toml"
    in_node "$1" kill -HUP "$(<"$run/$1/nodelb.pid")"
}

kube_proxy_start() {
    cat >"$run/$1/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ${KUBE_PROXY_MODE:-nftables}
clusterCIDR: $pod_cidrs
hostnameOverride: $1
clientConnection: {kubeconfig: $run/kube-proxy.kubeconfig}
conntrack: {maxPerCore: 0}
END
    start "$1" kube-proxy "$bin/kube-proxy" --config="$run/$1/kube-proxy.yaml"
    wait_for 30 "$1: kube-proxy" in_node "$1" curl -sf --noproxy '*' http://localhost:10249/healthz
}

# proxy nodelb|kube-proxy NODE: starts it.
proxy() {
    case $1 in
    nodelb)
        nodelb_files "$2"
        nodelb_start "$2"
        ;;
    kube-proxy) kube_proxy_start "$2" ;;
    *) fail "PROXY is nodelb or kube-proxy" ;;
    esac
}

# The last step of the way to nodelb, and of the way back.
kube_proxy_remove() {
    stop "$1" kube-proxy
    in_node "$1" "$bin/kube-proxy" --cleanup >>"$run/$1/kube-proxy.log" 2>&1
}
nodelb_remove() {
    stop "$1" nodelb
    in_node "$1" "$run/$1/nodelb" cleanup --config "$run/$1/nodelb.toml" >>"$run/$1/nodelb.log" 2>&1
}
