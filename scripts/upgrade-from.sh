#!/usr/bin/env bash
# Replaces another nodelb by this one and this one by the other, ROUNDS times each way, by stops and by SIGKILL, while clients
# make 1,000 connections a second over each protocol and others stay connected. Fails if a single exchange fails.
# Usage, as root: scripts/upgrade-from.sh OTHER [THIS], with the paths of two programs. To build the other one from its commit:
#   git worktree add /tmp/other COMMIT && cargo build --locked --manifest-path /tmp/other/Cargo.toml -p nodelb
# PROBER names nodelb-prober (default target/debug/nodelb-prober), RATE the connections a second, ROUNDS the rounds (default 5).
set -euo pipefail
cd "$(dirname "$0")/.."

other=$(realpath "$1")
this=$(realpath "${2:-target/debug/nodelb}")
prober=$(realpath "${PROBER:-target/debug/nodelb-prober}")
rounds=${ROUNDS:-5}
rate=${RATE:-1000}

if [ -z "${UPGRADE_INNER:-}" ]; then
    root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    cgroup=$root/nodelb-upgrade-$$
    mkdir "$cgroup"
    status=0
    UPGRADE_INNER=$cgroup unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$other" "$this" || status=$?
    echo 1 >"$cgroup/cgroup.kill"
    for _ in $(seq 50); do
        if rmdir "$cgroup" 2>/dev/null; then break; fi
        sleep 0.1
    done
    exit "$status"
fi

mount --make-rprivate /
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
ip link set lo up
ip address add 192.0.2.0/24 dev lo
echo "1024 65535" >/proc/sys/net/ipv4/ip_local_port_range
echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
echo 0 >"$UPGRADE_INNER/cgroup.procs"
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir "$directory/services.d" "$directory/state"
cat >"$directory/nodelb.toml" <<END
[node]
name = "n1"
[files]
directory = "$directory/services.d"
[state]
directory = "$directory/state"
[admin]
listen = ["127.0.0.1:9890"]
socket = ""
[datapath]
cgroup = "$UPGRADE_INNER"
END
for service in "t 80/TCP 8080" "u 53/UDP 5353" "k 81/TCP 8081"; do
    read -r name port target <<<"$service"
    printf '[[service]]\nname = "shop/%s"\nfrontends = ["198.51.100.10:%s"]\nbackends = ["192.0.2.1:%d", "192.0.2.2:%d"]\n' \
        "$name" "$port" "$target" "$target" >"$directory/services.d/$name.toml"
done

daemon=
start() {
    "$1" run --config "$directory/nodelb.toml" >"$directory/log" 2>&1 &
    daemon=$!
    for _ in $(seq 200); do
        if curl -sf 127.0.0.1:9890/readyz >/dev/null; then return 0; fi
        sleep 0.05
    done
    echo "$1 is not ready:" >&2
    tail -n 5 "$directory/log" >&2
    return 1
}

for host in 1 2; do
    "$prober" backend --name "b$host" --tcp "192.0.2.$host:8080" --tcp-lines "192.0.2.$host:8081" \
        --udp "192.0.2.$host:5353" >/dev/null &
done
start "$other"
seconds=$((rounds * 7 + 5))
probers=()
for protocol in tcp-asking udp udp-unconnected; do
    port=53
    [ $protocol != tcp-asking ] || port=80
    "$prober" probe --to "198.51.100.10:$port" --rate "$rate" --duration "$seconds" --proto $protocol --json \
        >"$directory/$protocol.json" 2>&1 &
    probers+=($!)
done
mkfifo "$directory/stop"
sleep 10000 >"$directory/stop" &
holder=$!
"$prober" keep --to 198.51.100.10:81 -n 50 --json <"$directory/stop" >"$directory/keep.json" 2>&1 &
keeper=$!
sleep 1
for round in $(seq "$rounds"); do
    for program in "$this" "$other"; do
        if [ $((round % 2)) = 0 ]; then kill -9 "$daemon"; else kill "$daemon"; fi
        wait "$daemon" 2>/dev/null || true
        start "$program"
        # Each of them also changes something.
        printf '[[service]]\nname = "x/n"\nfrontends = ["198.51.100.50:99"]\nbackends = ["192.0.2.3:%d"]\n' "$round" \
            >"$directory/services.d/.x"
        mv "$directory/services.d/.x" "$directory/services.d/x.toml"
        sleep 1
        curl -sf 127.0.0.1:9890/frontends | grep -q '^198.51.100.50:99.*OK' || { echo "$program serves no change" >&2; exit 1; }
    done
done
status=0
for prober_id in "${probers[@]}"; do wait "$prober_id" || status=1; done
kill $holder
wait $keeper || status=1
for of in tcp-asking udp udp-unconnected keep; do
    result=$(tr -d '\n ' <"$directory/$of.json")
    echo "$of: $result"
    [[ $result == *'"failed":0,'* ]] || status=1
done
exit $status
