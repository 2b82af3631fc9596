# Clients outside the node, and what is at its devices.
# shellcheck shell=bash disable=SC2154 # what is not assigned here is outside.sh's

# How programs are attached to devices: Linux has tcx links since 6.6.
case $(uname -r) in
6.1.*) hooks=clsact ;;
*) hooks=tcx ;;
esac

client() {
    ip netns exec client ./nodelb-prober "$@"
}

# reached ADDRESS PROTO NAME: whether the backend with this name answers each of several clients.
reached() {
    local output
    output=$(client connect --to "$1" --proto "$2" -n 3 --json) || { echo "$output"; return 1; }
    [[ $output == *"\"$3\":3"* ]] || { echo "$output"; return 1; }
}

all_are_reached() {
    local address proto
    for proto in tcp udp; do
        for address in "${addresses_of_local[@]}"; do
            reached "$address" $proto local || { echo "$proto $address"; return 1; }
        done
        for address in "${addresses_of_remote[@]}"; do
            reached "$address" $proto remote || { echo "$proto $address"; return 1; }
        done
    done
}

# Whether nodelb has both programs at the device.
has_device_programs() {
    local shown
    if [ $hooks = tcx ]; then
        shown=$(find /sys/fs/bpf -name "packets-*-$(<"/sys/class/net/$1/ifindex")")
    else
        shown=$(tc filter show dev "$1" ingress; tc filter show dev "$1" egress)
    fi
    [ "$(grep -c 'handle 0x6e6c\|packets-' <<<"$shown")" = 2 ] || { echo "$shown"; return 1; }
}

# Long-lived connections to both services, and new ones at a steady rate over TCP and UDP. There are few, because the guest
# runs at a tenth of the speed of a machine, and has all parts of the network on its CPU.
begin_load() {
    local address
    mkfifo "$memory/until"
    for address in 198.51.100.101:81 203.0.113.2:30012 '[2001:db8:f:1::2]:81'; do
        load keep --to "$address" -n 4
    done
    load probe --to 198.51.100.101:80 --rate 20
    load probe --to 203.0.113.2:30002 --rate 20
    load probe --to '[2001:db8:1::2]:30001' --rate 10 --proto udp
    load probe --to 198.51.100.102:80 --rate 10 --proto udp
    # Opened last: no client inherits it, and each ends when it is closed.
    exec {until}>"$memory/until"
    sleep 2
}

load() {
    client "$@" --json <"$memory/until" >"$memory/load-${#loads[@]}" &
    loads+=($!)
}
loads=()

# Each client runs: one that cannot open its connections has ended.
check_load() {
    check "clients run: $1" kill -0 "${loads[@]}"
}

end_load() {
    local number verdict
    exec {until}>&-
    for number in "${!loads[@]}"; do
        verdict=0
        wait "${loads[number]}" || verdict=$?
        check "nothing is lost $1: $(<"$memory/load-$number")" test $verdict = 0
    done
    loads=()
    rm "$memory"/{until,load-*}
}

is_ready() {
    curl -sS --fail-with-body http://localhost:9890/readyz
}

# set_mode MODE: of [packets].
set_mode() {
    sed -i "/^\[packets\]/,/^\[/s/^mode = .*/mode = \"$1\"/" /etc/nodelb/nodelb.toml
}
