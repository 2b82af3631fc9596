# shellcheck shell=bash disable=SC2154,SC2317 # the checks are called by name; the rest is in demo/story.sh
# The second act: services from a Kubernetes API server, and the outage replayed as it happened. The server is that of
# the tests (tests/README.md); kubectl speaks to it, or curl where there is no kubectl.

from_kubernetes() {
    direct=169.254.128.7:60002
    balancer=203.0.113.10:443
    kubernetes=198.51.100.1:443
    intranet=198.51.100.60:443
    node_port=192.0.2.1:30965
    shop=198.51.100.70:80
    # What a client on the node may dial; every one of them ends at $direct.
    doors=("$kubernetes" "$intranet" "$node_port" "$balancer")
    start_cluster
    connect
    empty_slices
    lose_apiserver
    return_apiserver
    step "9. Leaving"
    leave "$shop"
}

# Who says what to the apiserver. admin.kubeconfig names the direct address.
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
    # place KIND NAMESPACE: where objects of that kind are.
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

# field NAME FILE: of the object's metadata.
field() { sed -n "s/^  $1: //p" "$2" | head -n 1; }

# Shows a patch, which must be accepted.
patched() {
    local shown
    if shown=$(patch "$@" 2>&1); then head -n 1 <<<"$shown"; else check "$shown" false; fi
}

empty() { patched default endpointslice "$1" kube-apiserver '{"endpoints":null,"ports":null}'; }

annotate() {
    patched default service "$1" cloud-controller "{\"metadata\":{\"annotations\":{\"touched\":\"$(date -u +%FT%TZ)\"}}}"
}

# tell COMMAND...: to the test server, see tests/apiserver/src/control.rs.
tell() {
    local command
    for command in "$@"; do nodelb-apiserver --control "$dir/control" --tell "$command" || return; done
}

# show_piped PIPELINE: what is wide is cut or folded.
show_piped() { printf '    $ %s\n' "$1"; eval "$1" 2>&1 | indent; }

# request ADDRESS: a whole HTTPS exchange with an apiserver, which must be who it should be.
request() {
    curl --silent --show-error --fail --max-time 5 --output /dev/null --cacert "$dir/k8s/ca.crt" \
        --cert "$dir/k8s/admin.pem" --resolve "kubernetes:${1#*:}:${1%:*}" "https://kubernetes:${1#*:}/readyz"
}

all_answer() {
    local door
    for door in "${doors[@]}"; do request "$door" || { echo "at $door"; return 1; }; done
}

# Requests through every door, one after the other, from start_knocking to end_knocking; what fails is written down.
knock() {
    local door problem
    while [ -e "$dir/knock" ]; do
        for door in "${doors[@]}"; do
            if problem=$(request "$door" 2>&1); then echo ok; else echo "$door: $problem"; fi
        done
    done
}

start_knocking() {
    touch "$dir/knock"
    knock >>"$dir/knocks" 9>&- &
    knocker=$!
}

end_knocking() {
    rm "$dir/knock"
    wait "$knocker"
}

none_failed() { ! grep -vxm 5 ok "$dir/knocks"; }

# status WHAT SERVICE...: so it says of every frontend of each of these, and that they lead to an apiserver.
status() {
    local service rows
    for service in "${@:2}"; do
        rows=$(get "/frontends?service=$service" | tail -n +2)
        if [ -z "$rows" ] || grep -v "$direct/TCP .* $1 " <<<"$rows"; then return 1; fi
    done
}

# Object, resourceVersion and writer of what emptied the service NAME.
guilt() { echo "EndpointSlice default/$1 at resourceVersion [1-9][0-9]*, written by kube-apiserver "; }
explained() { get "/frontends?service=default/$1" | grep "$(guilt "$1")"; }
journalled() { grep "default/$1:.* is held: $(guilt "$1")" "$dir/log"; }

# dialled ADDRESS: while a connection of this shell to it is open, the kernel's table says where it has gone.
dialled() (
    shell=$BASHPID
    exec 7<>"/dev/tcp/${1%:*}/${1#*:}" && ss -Htnp state established "dst $direct" | grep "pid=$shell,"
)
own_connection() { ss -Htnp state established "dst $balancer" | grep "pid=$nodelb,"; }

start_cluster() {
    step "5. The platform of the outage: apiservers at $direct, the cloud's load balancer $balancer in front"
    nodelb-apiserver --listen "$balancer" --listen "$direct" --directory "$dir/k8s" --control "$dir/control" \
        --service-cidr 198.51.100.0/24 >"$dir/apiserver" 9>&- &
    disown
    soon grep -q ready "$dir/apiserver" || check "the apiserver starts" false
    # nodelb is told of the load balancer and of nothing else.
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

connect() {
    step "6. nodelb reads Services from Kubernetes"
    start_nodelb
    check "nodelb is ready" soon ready
    ready >/dev/null 2>&1 || verdict
    check "the apiserver answers at ${doors[*]}" all_answer
    show nodelb frontends
    check "a client's connection to $balancer leads to $direct" dialled "$balancer"
    check "nodelb's own one to $balancer does not: it never needs its own load balancing" own_connection
}

empty_slices() {
    step "7. The outage, under traffic to shop/web and to every address of the apiserver"
    start_traffic "$shop" 1000
    start_knocking
    say "A stopping apiserver takes its address out of the slice of default/kubernetes:"
    empty kubernetes
    check "default/kubernetes is held" soon status Held default/kubernetes
    say "The cloud's controller annotates kubernetes-intranet, which was the moment of the outage:"
    annotate kubernetes-intranet
    sleep 0.5
    check "default/kubernetes-intranet still leads to $direct" status Done default/kubernetes-intranet
    say "And now its own slice is emptied, too:"
    empty kubernetes-intranet
    check "it is held at its ClusterIP, NodePort and VIP" soon status Held default/kubernetes-intranet
    show_piped "nodelb frontends --address ${balancer%:*} | tail -n 1 | fold -sw 110"
    check "/frontends names object, resourceVersion and writer" explained kubernetes-intranet
    check "and so does the journal, once for each service" journalled_once
    show_piped "grep 'default/kubernetes:.* is held' $dir/log | fold -sw 110"
    check "the apiserver answers at all four addresses" all_answer
    end_knocking
}

journalled_once() {
    journalled kubernetes && journalled kubernetes-intranet && [ "$(grep -c "is held" "$dir/log")" = 2 ]
}

disconnected() {
    get /metrics | grep -x "nodelb_apiserver_connected 0" && [ "$(get /apiservers | grep -cE " (Configured|Learned) +Failed ")" = 2 ]
}
last_good() { get /sources | grep -E "^kubernetes .* LastGood "; }
waiting() { curl --silent http://localhost:9890/readyz | grep "waiting for the first complete answer of: kubernetes"; }
in_kernel() { get "/maps?address=${balancer%:*}" | grep "$direct"; }

lose_apiserver() {
    step "8. Every apiserver gone, and nodelb killed meanwhile"
    tell '{"stop": 0}' '{"stop": 1}'
    check "/apiservers says that none is left" soon disconnected
    check "/sources says that what is served is what was last heard" soon last_good
    show_piped "nodelb apiservers | head -n 4 | cut -c 1-115"
    check "nodelb is healthy, for there is nothing a restart would mend" get /healthz
    check "both services are still held" status Held default/kubernetes default/kubernetes-intranet
    kill -9 "$nodelb"
    check "nodelb is dead" soon gone
    start_nodelb
    check "started again, it waits for the apiserver" soon waiting
    check "and leaves in the kernel what leads there" in_kernel
    check "shop/web answers" dial "$shop" -n 100
}

return_apiserver() {
    say "The apiservers are back, with slices that are still empty:"
    tell '{"start": 0}' '{"start": 1}'
    check "nodelb is ready" soon ready
    check "both services are held again" soon status Held default/kubernetes default/kubernetes-intranet
    start_knocking
    check "the apiserver answers at all four addresses" all_answer
    check "the slices are filled" apply
    check "nothing is held any more" soon status Done default/kubernetes default/kubernetes-intranet
    end_knocking
    end_traffic
    check "all the while, to shop/web: $traffic" unharmed "$traffic"
    check "and while there was an apiserver: $(grep -c . "$dir/knocks") requests to it; 0 failed" none_failed
}
