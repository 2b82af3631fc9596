# shellcheck shell=bash
# shellcheck disable=SC2154 # settings.sh sets them
# The control plane, which runs in the router's network namespace, and its credentials. Sourced by cluster.sh.

key() { do_ openssl ecparam -genkey -name prime256v1 -noout -out "$pki/$1.key"; }

# certificate NAME SUBJECT USAGE [NAMES]
certificate() {
    key "$1"
    {
        echo "basicConstraints=CA:FALSE"
        echo "extendedKeyUsage=$3"
        [ -z "${4:-}" ] || echo "subjectAltName=$4"
    } >"$pki/$1.ext"
    do_ openssl req -new -key "$pki/$1.key" -subj "$2" -out "$pki/$1.csr"
    do_ openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 365 -sha256 \
        -extfile "$pki/$1.ext" -out "$pki/$1.crt"
}

kubeconfig() {
    cat >"$run/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://$api:6443", certificate-authority: $pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $pki/$1.crt, client-key: $pki/$1.key}}]
contexts: [{name: cluster, context: {cluster: cluster, user: $1}}]
current-context: cluster
END
}

credentials_up() {
    pki=$run/pki
    mkdir -p "$pki"
    local node user
    key ca
    do_ openssl req -x509 -new -key "$pki/ca.key" -subj /CN=cluster -days 365 -sha256 -out "$pki/ca.crt"
    certificate apiserver /CN=kube-apiserver serverAuth "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,\
DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:$api,IP:fd00:89::1"
    certificate admin /O=system:masters/CN=admin clientAuth
    certificate kube-proxy /O=system:node-proxier/CN=system:kube-proxy clientAuth
    certificate kube-controller-manager /CN=system:kube-controller-manager clientAuth
    certificate kube-scheduler /CN=system:kube-scheduler clientAuth
    for node in "${nodes[@]}"; do certificate "$node" "/O=system:nodes/CN=system:node:$node" clientAuth; done
    [ "$layout" != flannel ] || { certificate flannel /CN=flannel clientAuth; kubeconfig flannel; }
    for user in admin kube-proxy kube-controller-manager kube-scheduler "${nodes[@]}"; do kubeconfig "$user"; done
    # Tokens of service accounts.
    do_ openssl genrsa -out "$pki/accounts.key" 2048
    do_ openssl rsa -in "$pki/accounts.key" -pubout -out "$pki/accounts.pub"
}

# control NAME COMMAND...: starts a process of the control plane.
control() {
    local name=$1
    shift
    if [ -n "${DRY_RUN:-}" ]; then
        in_net router "$@"
        return
    fi
    (cd "$run" && exec setsid nsenter --net="/run/netns/$prefix-router" -- "$@" >>"$run/$name.log" 2>&1 </dev/null) &
    echo $! >"$run/$name.pid"
    disown
}

answers() {
    in_net router curl -skf -m 5 --noproxy '*' --cert "$run/pki/admin.crt" --key "$run/pki/admin.key" "$1"
}

etcd_up() {
    control etcd "$bin/etcd" --name cluster --data-dir "$run/etcd" --log-level warn --unsafe-no-fsync \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380
    wait_for 60 etcd answers http://127.0.0.1:2379/readyz
}

apiserver_up() {
    local pki=$run/pki
    control kube-apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 \
        --secure-port=6443 --advertise-address="$api" --service-cluster-ip-range="$service_cidrs" \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local --cert-dir="$run" \
        --service-account-key-file="$pki/accounts.pub" --service-account-signing-key-file="$pki/accounts.key" \
        --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
        --kubelet-preferred-address-types=InternalIP
    wait_for 90 kube-apiserver answers https://127.0.0.1:6443/readyz
}

# client NAME: the flags of a program that is a client of the API server.
client() {
    printf -- '--%s=%s\n' kubeconfig "$run/$1.kubeconfig" authentication-kubeconfig "$run/$1.kubeconfig" \
        authorization-kubeconfig "$run/$1.kubeconfig" leader-elect false bind-address 127.0.0.1 cert-dir "$run"
}

controllers_up() {
    local pki=$run/pki flags
    mapfile -t flags < <(client kube-controller-manager)
    control kube-controller-manager "$bin/kube-controller-manager" "${flags[@]}" --use-service-account-credentials=true \
        --service-account-private-key-file="$pki/accounts.key" --root-ca-file="$pki/ca.crt" --client-ca-file="$pki/ca.crt" \
        --allocate-node-cidrs=false --cluster-cidr="$pod_cidrs" --service-cluster-ip-range="$service_cidrs"
    mapfile -t flags < <(client kube-scheduler)
    control kube-scheduler "$bin/kube-scheduler" "${flags[@]}"
    wait_for 60 kube-controller-manager answers https://127.0.0.1:10257/healthz
    wait_for 60 kube-scheduler answers https://127.0.0.1:10259/healthz
    # The API on a local port without TLS: for the load balancer.
    control kubectl-proxy "$bin/kubectl" --kubeconfig="$KUBECONFIG" proxy --port=8001
}

control_up() {
    etcd_up
    apiserver_up
    controllers_up
}

# control_down NAME...: stops processes, in this order.
control_down() {
    local name pid i
    for name; do
        if [ -n "${DRY_RUN:-}" ]; then
            echo "stop $name"
            continue
        fi
        pid=$(cat "$run/$name.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || true
        for ((i = 0; i < 100; i++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
        rm -f "$run/$name.pid"
    done
}
