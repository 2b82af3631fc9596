# What the life of a node is looked at with.
# shellcheck shell=bash disable=SC2154 # what is not assigned here is life.sh's

is_not() {
    ! "$@"
}

# says PATTERN COMMAND...: whether the command succeeds and prints a line with the pattern.
says() {
    local pattern=$1 output
    shift
    output=$("$@") || { printf '%s\n' "$output"; return 1; }
    grep -qE -e "$pattern" <<<"$output" || { printf 'not said: %s\n%s\n' "$pattern" "$output"; return 1; }
}

# The command ends with 1 if there are problems, such as a cluster without this node.
status() {
    nodelb status
    [ $? -le 1 ]
}

journal_has() {
    says "$1" journalctl -b --no-pager --output=cat -u "$unit"
}

main_pid() {
    systemctl show --property=MainPID --value "$unit"
}

connect() {
    ./nodelb-prober connect --to "$1" -n 5
}

reaches_both() {
    local output
    output=$(./nodelb-prober connect --to "$static" -n 30 --json) || { echo "$output"; return 1; }
    [[ $output == *web-1* && $output == *web-2* ]] || { echo "$output"; return 1; }
}

# Permitted, effective, inheritable and ambient ones, in hexadecimal.
has_capabilities() {
    local held
    held=$(sed -n 's/^Cap\(Inh\|Prm\|Eff\|Amb\):\t0*\(.*\)$/\1 \2/p' "/proc/$1/status") || return 1
    printf '%s\n' "$held"
    grep -qx "Eff ${2#0}" <<<"$held" && grep -qx "Prm ${2#0}" <<<"$held" && grep -qx 'Inh ' <<<"$held"
}

# Each is started by a call of the daemon, which nothing waits for.
reaper_has_capabilities() {
    local reapers reaper
    mapfile -t reapers < <(pgrep -x nodelb-reaper)
    ((${#reapers[@]})) || return 1
    for reaper in "${reapers[@]}"; do
        has_capabilities "$reaper" "$1" || return 1
    done
}

verified_units() {
    local unit
    for unit in /lib/systemd/system/nodelb*; do
        systemd-analyze verify --man=no "$unit" 2>&1 | none || return 1
    done
}

# The programs of nodelb's hooks on the root of the cgroups; systemd attaches others, elsewhere.
programs() {
    local shown
    shown=$(bpftool cgroup show /sys/fs/cgroup) || return 1
    grep -oE '(connect|sendmsg|recvmsg|getpeername|bind)[46] *$' <<<"$shown" || true
}

has_programs() {
    local found
    found=$(programs) || return 1
    echo "$found"
    [ "$(grep -c . <<<"$found")" = "$1" ]
}

# Neither programs, nor pins.
no_trace_in_the_kernel() {
    has_programs 0 && find /sys/fs/bpf -mindepth 1 | none
}

# The test's own things aside, and what others wrote down about a package: apt, dpkg and the journal keep logs.
no_file_left() {
    find / -xdev -path /proc -prune -o -path /sys -prune -o -path /payload -prune -o -path /var/log -prune -o \
        -path /var/lib/life -prune -o -iname '*nodelb*' -print | none
}

# Warnings and worse of the kernel, of systemd, and of what systemd does for the units before they run.
warnings() {
    journalctl -b --no-pager --priority=warning --output=cat _TRANSPORT=kernel + _PID=1 + UNIT="$unit" \
        + SYSLOG_IDENTIFIER="(nodelb)" + SYSLOG_IDENTIFIER="(mkdir)" | sort -u
}

# What systemd says of what this test has done to nodelb is as it should be: killed it, and put an old version in the
# place of a newer one.
no_new_warning() {
    local signal="Main process exited, code=killed, status=9/KILL|Failed with result 'signal'."
    local refusal="Main process exited, code=exited, status=(77/NOPERM|78/CONFIG)|Failed with result 'exit-code'."
    refusal+="|Failed to start nodelb.service - Host-level service load balancer."
    # journald may not have closed its files at the reboot.
    local journal="File /var/log/journal/.*\.journal corrupted or uncleanly shut down, renaming and replacing\."
    comm -13 "$memory"/warnings <(warnings) |
        grep -vxE "(nodelb(-reaper@.*)?\.service: )?($signal|$refusal)|$journal" | none
}

runs_version_of() {
    local version
    version=$(dpkg-deb --field "$1" Version)
    [ "$(dpkg-query --show --showformat='${Version}' nodelb)" = "$version" ] &&
        [ "$(readlink "/proc/$(main_pid)/exe")" = /usr/sbin/nodelb ]
}

# of_link id | prog_id: of the link that attaches one of the programs.
of_link() {
    bpftool --json link show pinned /sys/fs/bpf/nodelb/v1/links/connect4 | grep -oE "\"$1\":[0-9]+"
}

has_link() {
    of_link id
    of_link prog_id
    [ "$(of_link id)" = "$1" ] && [ "$(of_link prog_id)" = "$2" ]
}

is_replaced() {
    of_link id
    of_link prog_id
    [ "$(of_link id)" = "$1" ] && [ "$(of_link prog_id)" != "$2" ]
}

has_another_reaper_than() {
    local old
    for old in "$@"; do
        [ ! -e "/proc/$old" ] || return 1
    done
    pgrep -x nodelb-reaper
}

is_killed() {
    local old
    old=$(main_pid)
    kill -9 "$old"
    within 60 is_another_than "$old"
}

is_another_than() {
    systemctl is-active "$unit" && [ "$(main_pid)" != "$1" ]
}

# Runs a command while 1,000 connections a second are made, each of which must reach a backend of the service.
under_load() {
    with_load check "$1, under load" "${@:2}"
    check "it is ready" within 60 curl -sfS http://localhost:9890/readyz
}

with_load() {
    local load verdict=0
    mkfifo "$memory/until"
    ./nodelb-prober probe --to "$static" --rate 1000 --json <"$memory/until" >"$memory/load" &
    load=$!
    exec {until}>"$memory/until"
    sleep 2
    "$@"
    sleep 3
    exec {until}>&-
    wait $load || verdict=1
    rm "$memory/until"
    check "no connection failed: $(<"$memory/load")" test $verdict = 0
    check "there were hundreds a second" test "$(sed -n 's/.*"rate":\([0-9]*\).*/\1/p' "$memory/load")" -ge 500
}
