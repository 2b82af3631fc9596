# shellcheck shell=bash disable=SC2154,SC2317 # the checks are called by name; the rest is in demo/main.sh
# Part two: services from a Kubernetes API server, and a reproduction of the outage. The API server is the test server
# (tests/README.md); the demo uses kubectl, or curl if kubectl is not installed.

from_kubernetes() {
    direct=169.254.128.7:60002
    balancer=203.0.113.10:443
    kubernetes=198.51.100.1:443
    intranet=198.51.100.60:443
    node_port=192.0.2.1:30965
    shop=198.51.100.70:80
    # The addresses that clients on the node connect to; all of them lead to $direct.
    addresses=("$kubernetes" "$intranet" "$node_port" "$balancer")
    start_cluster
    read_kubernetes
    empty_slices
    lose_apiserver
    return_apiserver
    step "9. Stop and cleanup"
    leave "$shop"
}

# Requests to the API server. admin.kubeconfig contains the direct address.
if command -v kubectl >/dev/null; then
    apply() { kubectl apply -f demo/cluster; }
    # patch NAMESPACE KIND NAME WRITER PATCH [SUBRESOURCE]
    patch() {
        local part=()
        [ -z "${6:-}" ] || part=(--subresource "$6")
        printf '    $ %s\n' "kubectl -n $1 patch $2 $3 ${part[*]:+${part[*]} }--type merge --field-manager $4 -p '$5'"
        kubectl -n "$1" patch "$2" "$3" "${part[@]}" --type merge --field-manager "$4" -p "$5"
    }
else
    # ask WRITER METHOD PATH TYPE BODY: one request with the administrator's certificate.
    ask() {
        curl --silent --show-error --fail-with-body --cacert "$dir/k8s/ca.crt" --cert "$dir/k8s/admin.pem" \
            --request "$2" --header "Content-Type: application/$4" --data-binary "$5" --output "$dir/answer" \
            "https://$direct$3?fieldManager=$1" || { cat "$dir/answer"; return 1; }
    }
    # place KIND NAMESPACE: prints the path of objects of that kind.
    place() {
        case $1 in
        namespace) echo /api/v1/namespaces ;;
        service) echo "/api/v1/namespaces/$2/services" ;;
        *) echo "/apis/discovery.k8s.io/v1/namespaces/$2/endpointslices" ;;
        esac
    }
    apply() {
        local file kind
        for file in demo/cluster/*.yaml; do
            kind=${file##*/}
            kind=${kind%%-*}
            ask kubectl PATCH "$(place "$kind" "$(field namespace "$file")")/$(field name "$file")" apply-patch+yaml \
                "@$file" || return
        done
    }
    patch() {
        local path
        path=$(place "$2" "$1")/$3${6:+/$6}
        printf '    $ %s\n' "curl -X PATCH -d '$5' 'https://$direct$path?fieldManager=$4'"
        ask "$4" PATCH "$path" merge-patch+json "$5"
    }
fi

# field NAME FILE: prints a field of the object's metadata.
field() { sed -n "s/^  $1: //p" "$2" | head -n 1; }

# Applies and shows a patch, which must succeed.
patched() {
    local shown
    if shown=$(patch "$@" 2>&1); then fit 8 "$(head -n 1 <<<"$shown")"; else check "$shown" false; fi
}

empty() { patched default endpointslice "$1" kube-apiserver '{"endpoints":null,"ports":null}'; }

annotate() {
    patched default service "$1" cloud-controller "{\"metadata\":{\"annotations\":{\"touched\":\"$(date -u +%FT%TZ)\"}}}"
}

# send COMMAND...: sends commands to the test server, see tests/apiserver/src/control.rs.
send() {
    local command
    for command in "$@"; do nodelb-apiserver --control "$dir/control" --send "$command" || return; done
}

# request ADDRESS: sends an HTTPS request to an API server and verifies its certificate.
request() {
    curl --silent --show-error --fail --max-time 5 --output /dev/null --cacert "$dir/k8s/ca.crt" \
        --cert "$dir/k8s/admin.pem" --resolve "kubernetes:${1#*:}:${1%:*}" "https://kubernetes:${1#*:}/readyz"
}

all_answer() {
    local address
    for address in "${addresses[@]}"; do request "$address" || { echo "at $address"; return 1; }; done
}

# Requests to each address in turn, from start_requests to end_requests; records failures.
request_all() {
    local address problem
    while [ -e "$dir/requesting" ]; do
        for address in "${addresses[@]}"; do
            if problem=$(request "$address" 2>&1); then echo ok; else echo "$address: $problem"; fi
        done
    done
}

start_requests() {
    touch "$dir/requesting"
    request_all >>"$dir/requests" 9>&- &
    requester=$!
}

end_requests() {
    rm "$dir/requesting"
    wait "$requester"
}

none_failed() { ! grep -vxm 5 ok "$dir/requests"; }

# status STATUS SERVICE...: every frontend of these services has this status and leads to an apiserver.
status() {
    local service rows
    for service in "${@:2}"; do
        rows=$(get "/frontends?service=$service" | tail -n +2)
        if [ -z "$rows" ] || grep -v "$direct/TCP .* $1 " <<<"$rows"; then return 1; fi
    done
}

# cause NAME: the object, resourceVersion and writer that emptied the service.
cause() { echo "EndpointSlice default/$1 at resourceVersion [1-9][0-9]*, written by kube-apiserver "; }
explained() { get "/frontends?service=default/$1" | grep "$(cause "$1")"; }
journalled() { grep "default/$1:.* is held: $(cause "$1")" "$dir/log"; }

# leads_to_apiserver ADDRESS: opens a connection to the address and looks up its peer in the kernel's table.
leads_to_apiserver() (
    shell=$BASHPID
    exec 7<>"/dev/tcp/${1%:*}/${1#*:}" && ss -Htnp state established "dst $direct" | grep "pid=$shell,"
)
learned() { get /apiservers | grep -E "^$direct +Learned "; }
own_connection() { ss -Htnp state established "dst $balancer" | grep "pid=$nodelb,"; }

start_cluster() {
    step "5. A cluster like that of the outage: API servers at $direct, behind the load balancer $balancer"
    peer "the load balancer of the outage" "had the same configuration: it reached the API server by an address that it balanced."
    nodelb-apiserver --listen "$balancer" --listen "$direct" --directory "$dir/k8s" --control "$dir/control" \
        --service-cidr 198.51.100.0/24 >"$dir/apiserver" 9>&- &
    disown
    soon grep -q ready "$dir/apiserver" || check "the API server starts" false
    # nodelb's configuration contains only the load balancer.
    sed -i '/^- name: server-1$/,+3d' "$dir/k8s/nodelb.kubeconfig"
    sed -i '/^- name: server-0$/,+3d; s/^current-context: .*/current-context: server-1/' "$dir/k8s/admin.kubeconfig"
    sed -n 's/.*client-\(certificate\|key\)-data: //p' "$dir/k8s/admin.kubeconfig" |
        while read -r part; do base64 -d <<<"$part"; done >"$dir/k8s/admin.pem"
    # kubectl writes its cache below HOME.
    export KUBECONFIG=$dir/k8s/admin.kubeconfig HOME=$dir
    check "Services default/kubernetes, default/kubernetes-intranet and shop/web are applied" apply
    patched default service kubernetes-intranet cloud-controller \
        '{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.10","ipMode":"VIP"}]}}}' status
    mkdir "$dir/none" "$dir/state"
    cat >"$dir/nodelb.toml" <<END
[node]
nodeport-addresses = ["${node_port%:*}"]
[files]
directory = "$dir/none"
[kubernetes]
kubeconfig = "$dir/k8s/nodelb.kubeconfig"
[state]
directory = "$dir/state"
[datapath]
cgroup = "$cgroup"
END
    show grep server: "$dir/k8s/nodelb.kubeconfig"
}

read_kubernetes() {
    step "6. nodelb reads Services from Kubernetes"
    peer "the load balancer of the outage" "translated its own connection to the API server, too."
    start_nodelb
    check "nodelb is ready" soon ready
    ready >/dev/null 2>&1 || verdict
    check "the API server responds at ${addresses[*]}" all_answer
    show nodelb frontends
    check "a client's connection to $balancer leads to $direct" leads_to_apiserver "$balancer"
    check "nodelb's own connection to $balancer is not translated" own_connection
    check "nodelb has learned $direct from the endpoints of default/kubernetes" soon learned
}

empty_slices() {
    step "7. The outage, with traffic to shop/web and to every address of the API server"
    peer "kube-proxy" "empties default/kubernetes and refuses connections until the slice is filled again."
    peer "the load balancer of the outage" "emptied both services and could not reach the API server again."
    start_traffic "$shop" 1000
    start_requests
    say "An API server that stops removes its address from the slice of default/kubernetes:"
    empty kubernetes
    check "default/kubernetes is held" soon status Held default/kubernetes
    say "The controller of the cloud annotates kubernetes-intranet, which triggered the outage:"
    annotate kubernetes-intranet
    sleep 0.5
    check "default/kubernetes-intranet still leads to $direct" status OK default/kubernetes-intranet
    say "The slice of kubernetes-intranet is emptied, too:"
    empty kubernetes-intranet
    check "default/kubernetes-intranet is held at all its addresses" soon status Held default/kubernetes-intranet
    show nodelb frontends --address "${balancer%:*}"
    check "/frontends shows the object, its resourceVersion and its writer" explained kubernetes-intranet
    check "the journal shows the same, once for each service" journalled_once
    show "grep 'default/kubernetes:.* is held' $dir/log"
    check "the API server responds at all four addresses" all_answer
    end_requests
    say "Why, since when, and who changed it:"
    show nodelb diagnose default/kubernetes
    show nodelb history default/kubernetes
}

journalled_once() {
    journalled kubernetes && journalled kubernetes-intranet && [ "$(grep -c "is held" "$dir/log")" = 2 ]
}

# No API server is in use, and both have failed. If the check fails, what it prints shows why.
disconnected() {
    local known connected
    known=$(get /apiservers) && connected=$(get /metrics | grep "^nodelb_apiserver_connected ") || return
    printf '%s\n' "$known" "$connected"
    [ "$connected" = "nodelb_apiserver_connected 0" ] &&
        [ "$(grep -cE " (Configured|Learned) +Failed " <<<"$known")" = 2 ]
}
last_good() { get /sources | grep -E "^kubernetes .* LastGood "; }
waiting() { curl --silent http://localhost:9890/readyz | grep "waiting for the initial sync of: kubernetes"; }
in_kernel() { get "/maps?address=${balancer%:*}" | grep "$direct"; }

lose_apiserver() {
    step "8. All API servers are down, and nodelb is killed"
    peer "the load balancer of the outage" "had to reach the API server before it served anything: a restart did not help."
    send '{"stop": 0}' '{"stop": 1}'
    check "/apiservers shows that no API server is reachable" soon disconnected
    check "/sources shows that nodelb serves the last known state" soon last_good
    show nodelb apiservers
    check "nodelb is healthy, because a restart would not help" get /healthz
    check "both services are still held" status Held default/kubernetes default/kubernetes-intranet
    kill -9 "$nodelb"
    check "nodelb is dead" soon gone
    start_nodelb
    check "nodelb is started again and waits for the API server" soon waiting
    check "nodelb keeps the entries in the kernel" in_kernel
    check "shop/web accepts connections" connect "$shop" -n 100
}

return_apiserver() {
    say "The API servers run again; the slices are still empty:"
    send '{"start": 0}' '{"start": 1}'
    check "nodelb is ready" soon ready
    check "both services are held again" soon status Held default/kubernetes default/kubernetes-intranet
    start_requests
    check "the API server responds at all four addresses" all_answer
    check "the slices are filled" apply
    check "no service is held any more" soon status OK default/kubernetes default/kubernetes-intranet
    end_requests
    end_traffic
    check "traffic to shop/web during acts 7 and 8: $traffic" unharmed "$traffic"
    remember outage "$traffic"
    check "requests while an API server was running: $(grep -c . "$dir/requests"); 0 failed" none_failed
}
