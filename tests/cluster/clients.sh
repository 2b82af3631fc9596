#!/usr/bin/env bash
# Which client addresses the backends see, on the running cluster with packets.mode = "on": from outside, nodes and pods, over
# IPv4 and IPv6, TCP and UDP. Prints a table as Markdown; exits with 1 if a request has no answer or a backend sees another
# address than docs/packets.md says. REQUESTS (default 20) for each row. Usage: clients.sh
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/cluster/settings.sh
. "$here/settings.sh"
# shellcheck source=tests/cluster/flows.sh
. "$here/flows.sh"
requests=${REQUESTS:-20}
wrong=0

# One line for each request: the backend's name, and the client that it has seen. Both come over one connection.
# shellcheck disable=SC2016 # bash at the client's place expands them
ask='set -u
host=$2
[[ $host != *:* ]] || host="[$host]"
for ((i = 0; i < $4; i++)); do
    name= client=
    if [ "$1" = TCP ]; then
        read -r name client < <(curl -sf -m 5 --noproxy "*" -w " " "http://$host:$3/hostname" "http://$host:$3/clientip")
    elif exec 3<>"/dev/udp/$2/$3"; then
        printf hostname >&3 && name=$(timeout 3 dd bs=1500 count=1 status=none <&3)
        printf clientip >&3 && client=$(timeout 3 dd bs=1500 count=1 status=none <&3)
        exec 3>&-
    fi
    client=${client%:*} client=${client#[} client=${client%]}
    echo "${name:--} ${client:--}"
done'

# seen NODE SIGN: how often which address, in the answers of the backends on the node (SIGN is =) or on others (!).
seen() {
    local lines
    lines=$(awk -v own="${pods[$1]}" -v sign="$2" '($1 == own) == (sign == "=")' <<<"$answers")
    cut -d ' ' -f 2 <<<"$lines" | grep . | sort | uniq -c | awk '{ printf "%s%s (%d)", (NR > 1 ? ", " : ""), $2, $1 }'
}

# row FROM TO PROTOCOL ADDRESS PORT NODE LOCAL REMOTE COMMAND...: LOCAL is the addresses that a backend on the node may see, and
# REMOTE those for a backend on another one: patterns, or - if no such backend may answer.
row() {
    local from=$1 to=$2 protocol=$3 address=$4 port=$5 node=$6 local=$7 remote=$8 name client verdict=ok
    shift 8
    answers=$("$@" bash -c "$ask" - "$protocol" "$address" "$port" "$requests" 2>/dev/null </dev/null) || true
    while read -r name client; do
        if [ "$name" = "${pods[$node]}" ]; then
            grep -qxE -- "$local" <<<"$client" || verdict=WRONG
        else
            grep -qxE -- "$remote" <<<"$client" && [ "$name" != - ] || verdict=WRONG
        fi
    done <<<"$answers"
    [ "$verdict" = ok ] || wrong=$((wrong + 1))
    echo "| $from | $to | $protocol | $(seen "$node" =) | $(seen "$node" !) | $verdict |"
}

# both FROM TO ADDRESS TCP_PORT NODE LOCAL REMOTE COMMAND...: a row for each protocol.
both() {
    local from=$1 to=$2 address=$3 port=$4
    shift 4
    row "$from" "$to" TCP "$address" "$port" "$@"
    row "$from" "$to" UDP "$address" $((port + 1)) "$@"
}

# The addresses of a node and of its devices towards pods.
of_node() {
    if [ "$2" = 4 ]; then
        echo "$(node_ip4 "$1")|10\.244\.${1#node}\.[01]"
    else
        echo "$(node_ip6 "$1")|fd00:10:244:${1#node}::1?"
    fi
}

# balancer SERVICE FAMILY: the address of the load balancer, which sends connections to any node.
balancer() {
    local addresses
    addresses=$(kubectl get service "$1" -o 'jsonpath={range .status.loadBalancer.ingress[*]}{.ip}{"\n"}{end}')
    if [ "$2" = 4 ]; then grep -vF : <<<"$addresses"; else grep -F : <<<"$addresses"; fi
}
reached() { in_net outside curl -sf -m 2 --noproxy '*' "http://$(balancer "$1" 4)/hostname"; }

quietly kubectl apply -f "$here/clients.yaml"
quietly kubectl rollout status daemonset/client --timeout=120s
for service in everywhere here; do wait_for 30 "load balancer: $service" reached $service; done
declare -A pods pod process
for node in "${nodes[@]}"; do
    read -r "pods[$node]" "pod[$node,4]" "pod[$node,6]" < <(kubectl get pods -l app=client --field-selector "spec.nodeName=$node" \
        -o 'jsonpath={.items[0].metadata.name} {.items[0].status.podIPs[0].ip} {.items[0].status.podIPs[1].ip}{"\n"}')
    process[$node]=$(client_process "$node")
done

echo "| client | to | | backends on the node that translates see | backends on other nodes see | |"
echo "|---|---|---|---|---|---|"
for family in 4 6; do
    outside=192.0.2.2 everywhere=10.96.101.1 here_=10.96.101.2
    [ "$family" = 4 ] || { outside=2001:db8:2::2 everywhere=fd00:10:96::6501 here_=fd00:10:96::6502; }
    for node in "${nodes[@]}"; do
        address=$("node_ip$family" "$node")
        own=$(of_node "$node" "$family")
        seen_pod=${pod[$node,$family]}
        both outside "NodePort of $node" "$address" 30480 "$node" "$outside" "$own" in_net outside
        both outside "NodePort of $node, Local" "$address" 30580 "$node" "$outside" - in_net outside
        in_pod=(in_node "$node" nsenter --target "${process[$node]}" --net --)
        both "pod on $node" ClusterIP "$everywhere" 80 "$node" "$seen_pod" "$seen_pod" "${in_pod[@]}"
        both "pod on $node" "ClusterIP, Local" "$here_" 80 "$node" "$seen_pod" - "${in_pod[@]}"
        both "pod on $node" "NodePort of $node" "$address" 30480 "$node" "$seen_pod" "$seen_pod" "${in_pod[@]}"
        both "$node" ClusterIP "$everywhere" 80 "$node" "$own" "$own" in_node "$node"
    done
    # Whichever node gets a connection, one of its own pods answers.
    both outside "load balancer, Local" "$(balancer here $family)" 80 node1 "$outside" "$outside" in_net outside
    # Masquerading of the network plugin gives packets to another node the address of this one.
    own=$(of_node node1 "$family")
    in_pod=(in_node node1 nsenter --target "${process[node1]}" --net --)
    both "pod on node1" "NodePort of node2, Local" "$("node_ip$family" node2)" 30580 node2 "$own" - "${in_pod[@]}"
done
quietly kubectl delete --wait=false -f "$here/clients.yaml"
echo
echo "$wrong wrong"
[ "$wrong" = 0 ]
