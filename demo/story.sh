#!/usr/bin/env bash
# What `make demo` shows, told from inside the namespaces that demo/run.sh made. Every check prints a tick or a cross;
# the exit code is 0 only if all of them held.
# shellcheck disable=SC2317 # the checks are called by name
set -uo pipefail
bin=$1
cgroup=$2
PATH=$bin:$PATH:/usr/sbin:/sbin
trap 'exit 130' INT TERM

dir=/run/nodelb-demo
web=198.51.100.10:80
dns=198.51.100.10:53
test=198.51.100.1:80
extended=198.51.100.2:80
crosses=0
ticks=0

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
    bold='' green='' red='' dim='' plain=''
fi

step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
indent() { sed "s/^/    $dim/; s/\$/$plain/"; }
say() { printf '  %s\n' "$*"; }
show() { printf '    $ %s\n' "$*"; "$@" 2>&1 | indent; }

# check WHAT COMMAND...: runs the command quietly; shows its output only if it fails.
check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf '  %s✓%s %s\n' "$green" "$plain" "$what"
        ticks=$((ticks + 1))
    else
        printf '  %s✗ %s%s\n' "$red" "$what" "$plain"
        indent <<<"$output"
        crosses=$((crosses + 1))
    fi
}

# soon COMMAND...: until it succeeds, for at most ten seconds.
soon() {
    local i
    for ((i = 0; i < 100; i++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    "$@"
}

dial() { nodelb-prober connect --to "$@"; }
get() { curl --silent --show-error --fail "http://localhost:9890$1"; }
ready() { get /readyz; }
# served ADDRESS BACKEND: nodelb's own table says so.
served() { get "/frontends?address=${1%:*}" | grep -F "$1/" | grep -F " $2/" | grep -qw Done; }
refused() { [[ $(dial "$1") == *" ECONNREFUSED 1"* ]]; }
unrouted() { [[ $(dial "$1") == *" ENETUNREACH 1"* ]]; }
# edit FILE: standard input becomes the file, in one step, as `mv` and good editors do it.
edit() { cat >"$dir/edited" && mv "$dir/edited" "$dir/services.d/$1"; }

# spread TEXT: both backends answered, neither got more than six in ten, none failed.
spread() {
    [[ $1 == *"; 0 failed"* && $1 =~ backend-1\ ([0-9]+),\ backend-2\ ([0-9]+) ]] &&
        ((BASH_REMATCH[1] >= 400 && BASH_REMATCH[2] >= 400))
}

start_nodelb() {
    # 9 ends the traffic when its last holder closes it: nodelb must not hold it.
    nodelb run --config "$dir/nodelb.toml" >>"$dir/log" 2>&1 9>&- &
    nodelb=$!
    # Not a job: bash would announce its death in the middle of the story.
    disown "$nodelb"
}

gone() { ! kill -0 "$nodelb" 2>/dev/null; }

prepare() {
    mount -t bpf bpf /sys/fs/bpf
    mount -t tmpfs tmpfs /run
    mkdir -p "$dir/services.d"
    ip link set lo up
    # Backends listen on addresses of these two; nothing routes 198.51.100.0/24, where the services are. All are
    # documentation addresses but 1.1.1.1, which the incident's reproduction names: it never leaves this namespace.
    ip address add 192.0.2.0/24 dev lo
    ip address add 1.1.1.1/32 dev lo
    nodelb-prober backend --name backend-1 --tcp 192.0.2.11:8080 --udp 192.0.2.11:5353 &
    nodelb-prober backend --name backend-2 --tcp 192.0.2.12:8080 --udp 192.0.2.12:5353 &
    nodelb-prober backend --name incident-backend --tcp 1.1.1.1:80 &
    disown -a
    cat >"$dir/nodelb.toml" <<END
[files]
directory = "$dir/services.d"
[datapath]
cgroup = "$cgroup"
END
}

act_balance() {
    step "1. Two backends, and a service before them that exists in nodelb only"
    start_nodelb
    check "nodelb is ready" soon ready
    ready >/dev/null 2>&1 || verdict
    edit shop.toml <<END
[[service]]
name = "shop/web"
frontends = ["$web"]
backends = ["192.0.2.11:8080", "192.0.2.12:8080"]

[[service]]
name = "shop/dns"
frontends = ["$dns/UDP"]
backends = ["192.0.2.11:5353", "192.0.2.12:5353"]
END
    show cat "$dir/services.d/shop.toml"
    check "the file is served as soon as it is there" soon served "$dns" 192.0.2.12:5353
    local tcp udp
    tcp=$(dial "$web" -n 1000)
    udp=$(dial "$dns" -n 1000 --proto udp)
    check "TCP to $web: $tcp" spread "$tcp"
    check "UDP to $dns: $udp" spread "$udp"
    show curl -s localhost:9890/frontends
}

act_incident() {
    step "2. The outage nodelb exists for: two services, one backend, one name the beginning of the other"
    cp demo/incident/{service,slice}-test{,-extended}.yaml "$dir/services.d/"
    check "default/test answers" soon dial "$test"
    check "default/test-extended answers" soon dial "$extended"
    say "EndpointSlice test is emptied (endpoints: null, ports: null):"
    edit slice-test.yaml <demo/incident/slice-test-empty.yaml
    check "default/test refuses with ECONNREFUSED (not EPERM)" soon refused "$test"
    check "default/test-extended keeps its backend" served "$extended" 1.1.1.1:80
    check "100 connections to it succeed" dial "$extended" -n 100
    say "Service test-extended is annotated, nothing else, which was the moment of the outage:"
    sed 's/annotations: {}/annotations: {touched: "2024-01-01T00:00:00Z"}/' demo/incident/service-test-extended.yaml |
        edit service-test-extended.yaml
    sleep 1
    check "default/test-extended still has its backend" served "$extended" 1.1.1.1:80
    check "100 connections to it succeed" dial "$extended" -n 100
    check "default/test still refuses with ECONNREFUSED" refused "$test"
    show curl -s "localhost:9890/frontends?service=default/test-extended"
    say "The slice is filled again:"
    edit slice-test.yaml <demo/incident/slice-test.yaml
    check "default/test answers again" soon dial "$test"
}

act_kill() {
    step "3. kill -9 in the middle of 1,000 connections a second"
    local probe result=$dir/traffic
    exec 9> >(exec nodelb-prober probe --to "$web" --rate 1000 >"$result")
    probe=$!
    sleep 1
    kill -9 "$nodelb"
    check "nodelb is dead" soon gone
    sleep 2
    printf '%s' "$(sed 's/, "192.0.2.12:8080"//' "$dir/services.d/shop.toml")" | edit shop.toml
    start_nodelb
    check "started again, it is ready" soon ready
    check "and serves what was changed meanwhile: backend-2 has left the file" soon only_backend_1
    sleep 0.5
    exec 9>&-
    wait "$probe" 2>/dev/null
    check "all the while: $(cat "$result")" unharmed "$(cat "$result")"
}

only_backend_1() { ! get "/frontends?service=shop/web" | grep -q 192.0.2.12; }
unharmed() { [[ $1 =~ ^([0-9]+)\ connections && $1 == *"; 0 failed"* ]] && ((BASH_REMATCH[1] >= 1000)); }
no_pins() { [ ! -e /sys/fs/bpf/nodelb ] || { find /sys/fs/bpf/nodelb; false; }; }

act_leave() {
    step "4. Leaving"
    kill -TERM "$nodelb"
    check "SIGTERM ends nodelb" soon gone
    check "traffic goes on without it" dial "$web" -n 100
    show nodelb cleanup --config "$dir/nodelb.toml"
    check "after cleanup nothing is pinned" no_pins
    check "and nothing is translated: $web is a foreign address again" unrouted "$web"
}

verdict() {
    echo
    if [ "$crosses" -gt 0 ]; then
        printf '%s%d of %d checks failed. What nodelb said:%s\n' "$red" "$crosses" $((ticks + crosses)) "$plain"
        tail -n 40 "$dir/log" | indent
        exit 1
    fi
    printf '%s%d checks held.%s ' "$green" "$ticks" "$plain"
    exit 0
}

prepare
act_balance
act_incident
act_kill
act_leave
verdict
