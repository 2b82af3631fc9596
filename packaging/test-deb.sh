#!/usr/bin/env bash
# Installs, upgrades, removes and purges a .deb in a clean tree: Debian's essential packages and its dependencies. Needs
# root. A script replaces systemctl and records its calls; BPF is that of the kernel, in namespaces and a cgroup of this
# test. Usage: packaging/test-deb.sh PACKAGE [PREVIOUS], a package of an earlier version to upgrade from.
set -euo pipefail
package=$(realpath "$1")
previous=${2:-}

if [ -z "${DEB_TEST_WORK:-}" ]; then
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    depends=$(dpkg-deb -f "$package" Depends | sed 's/ ([^)]*)//g; s/ //g')
    # shellcheck source=/dev/null
    mmdebstrap --quiet --variant=essential --include="$depends" "$(. /etc/os-release; echo "$VERSION_CODENAME")" "$work/tree"
    cp "$package" "$work/tree/tmp/this.deb"
    [ -z "$previous" ] || cp "$previous" "$work/tree/tmp/previous.deb"
    DEB_TEST_WORK=$work unshare --mount --net "$0" "$package" "$previous"
    exit
fi

work=$DEB_TEST_WORK
tree=$work/tree
cgroup_name=nodelb-package-test-$$
daemon=

finish() {
    [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
    # Mounts are removed with the namespace.
    rmdir "$tree/sys/fs/cgroup/$cgroup_name" 2>/dev/null || true
}
trap finish EXIT

# shellcheck source=packaging/check.sh
. "$(dirname "$0")/check.sh"

inside() {
    PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" "$@"
}

# Prints nothing unless it fails; the output is in $work/said.
dpkg_does() {
    inside dpkg "$@" </dev/null >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "dpkg $*"; }
}

# Only programs of tests let the environment choose the layout of the maps, crash, or attach in another way: by variables
# NODELB_TEST_*. The one variable of the released program is NODELB_COMPLETE. Eight bytes are compared, because a compiler
# stores short names in instructions, eight bytes in each.
has_no_switches_of_tests() {
    same "the variables that the program reads" NODELB_C "$(grep -aoE 'NODELB_[A-Z]' "$tree/usr/sbin/nodelb" | sort -u)"
}

# Each library that the program names belongs to a package in Depends: others may not be there on another system.
depends_on_its_libraries() {
    local library
    readelf -d "$tree/usr/sbin/nodelb" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/libraries"
    same "each library is of a package in Depends" "$(dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/^ *//; s/ .*//' | sort -u)" \
        "$(while read -r library; do inside dpkg -S "*/$library"; done <"$work/libraries" | sed 's/:.*//' | sort -u)"
}

files() {
    find "$tree" -xdev -not -path "$tree/var/lib/dpkg/*" -not -path "$tree/var/log/*" -not -path "$tree/tmp/*" | sort
}

# The same package with a newer version and another default configuration.
next_version() {
    dpkg-deb -R "$package" "$work/next"
    sed -i 's/^Version: .*/Version: 999.0.0-1/' "$work/next/DEBIAN/control"
    echo '# A new default.' >>"$work/next/etc/nodelb/nodelb.toml"
    echo 'nodelb (999.0.0-1)' | gzip -n >"$work/next/usr/share/doc/nodelb/changelog.Debian.gz"
    dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/next" "$tree/tmp/next.deb" >/dev/null
}

# From here on systemd seems to run in the tree. The systemctl script fails if /fail exists, and reports the daemon as
# failed or enabled if /failed or /enabled exists.
pretend_systemd() {
    mkdir -p "$tree/run/systemd/system"
    cat >"$tree/usr/bin/systemctl" <<-'STUB'
	#!/bin/sh
	case " $* " in
	*" is-failed "*) [ -e /failed ]; exit ;;
	*" is-enabled "*) [ -e /enabled ] && echo enabled; exit ;;
	*" is-active "*) [ ! -e /failed ]; exit ;;
	esac
	version=$(zcat /usr/share/doc/nodelb/changelog.Debian.gz 2>/dev/null | head -n 1 | cut -d ' ' -f 2)
	echo "$* ${version:-(nothing)}" >>/asked
	[ ! -e /fail ]
	STUB
    chmod +x "$tree/usr/bin/systemctl"
}

without_systemd() {
    local before
    before=$(files)
    dpkg_does -i /tmp/this.deb
    same "its dependencies suffice: the program runs" "nodelb" "$(inside nodelb --version | cut -d ' ' -f 1)"
    inside nodelb check-config >/dev/null || fail "nodelb check-config"
    has_no_switches_of_tests
    same "its man page has the version" "$(inside nodelb --version)" "$(zcat "$tree/usr/share/man/man8/nodelb.8.gz" |
        sed -n 's/^\.TH .*"\(nodelb [^"]*\)".*/\1/p')"
    depends_on_its_libraries
    same "nothing is enabled" "" "$(find "$tree/etc/systemd" -name 'nodelb*' 2>/dev/null)"
    dpkg_does --purge nodelb
    same "a purge leaves nothing" "" "$(diff <(echo "$before") <(files) || true)"
}

with_a_daemon_that_failed() {
    touch "$tree/failed" "$tree/enabled"
    dpkg_does --force-confold -i /tmp/next.deb
    same "an upgrade starts a daemon that had failed" "--system daemon-reload (999.0.0-1)
--quiet --system restart nodelb.service (999.0.0-1)" "$(asked)"
    rm "$tree/enabled"
    dpkg_does --force-confold -i /tmp/this.deb
    same "but not if it is disabled" "--system daemon-reload $1" "$(asked)"
    rm "$tree/failed"
}

# With a key that the new version does not have.
with_an_old_configuration() {
    break_configuration
    dpkg_does --force-confold -i /tmp/this.deb
    same "a daemon that runs is left alone if the new one would refuse the configuration" \
        "--system daemon-reload $1" "$(asked)"
    names_what_is_broken
    lose_kubeconfig
    dpkg_does --force-confold -i /tmp/this.deb
    same "what the configuration names is no reason" "--system daemon-reload $1
try-restart nodelb.service $1" "$(asked)"
    fix_configuration
}

removal_that_fails() {
    local prerm=$tree/var/lib/dpkg/info/nodelb.prerm
    cp "$prerm" "$work/prerm"
    echo "exit 1" >>"$prerm"
    touch "$tree/enabled"
    ! inside dpkg -r nodelb </dev/null >"$work/said" 2>&1 || fail "dpkg -r nodelb did not fail"
    same "a removal that is given up starts the daemon again" "stop nodelb.service $1
--quiet --system start nodelb.service $1" "$(asked)"
    rm "$tree/enabled"
    cp "$work/prerm" "$prerm"
    dpkg_does --configure -a
    dpkg_does --force-confold -i /tmp/this.deb
    asked >"$work/said"
}

with_systemd() {
    local this units restarted
    this="($(dpkg-deb -f "$package" Version))"
    dpkg_does -i /tmp/this.deb
    units=nodelb.service
    restarted="--system daemon-reload $this"$'\n'"try-restart $units $this"
    same "installing starts nothing: it restarts what runs" "$restarted" "$(asked)"
    echo '# Mine.' >>"$tree/etc/nodelb/nodelb.toml"
    dpkg_does --force-confold -i /tmp/next.deb
    same "an upgrade restarts once, with the new files, and stops nothing" "${restarted//"$this"/(999.0.0-1)}" "$(asked)"
    same "a changed configuration is kept" '# Mine.' "$(tail -n 1 "$tree/etc/nodelb/nodelb.toml")"
    touch "$tree/fail"
    dpkg_does --force-confold -i /tmp/this.deb
    rm "$tree/fail"
    grep -q "the new daemon did not start" "$work/said" || fail "nothing is said of a restart that failed"
    same "so does a downgrade, though the restart fails" "$restarted" "$(asked)"
    with_a_daemon_that_failed "$this"
    with_an_old_configuration "$this"
    removal_that_fails "$this"
    dpkg_does -r nodelb
    same "removing stops it" "stop $units $this"$'\n'"--system daemon-reload (nothing)" "$(asked)"
    same "removing keeps the configuration" '# Mine.' "$(tail -n 1 "$tree/etc/nodelb/nodelb.toml")"
    touch "$tree/etc/nodelb/services.d/mine.toml"
    dpkg_does --purge nodelb
    same "a purge keeps service files of the administrator" "mine.toml" "$(ls "$tree/etc/nodelb/services.d")"
    rm -r "$tree/etc/nodelb" "$tree/run/systemd" "$tree/usr/bin/systemctl"
}

make_kernel() {
    mkdir -p "$tree"/proc "$tree"/sys/fs/{bpf,cgroup}
    mount -t proc proc "$tree/proc"
    mount -t bpf bpf "$tree/sys/fs/bpf"
    mount -t cgroup2 cgroup2 "$tree/sys/fs/cgroup"
    mkdir "$tree/sys/fs/cgroup/$cgroup_name"
    ip link set lo up
}

# The error of a connection from the cgroup to a service without backends: `connect [ADDRESS]`.
connect() {
    (
        echo "$BASHPID" >"$tree/sys/fs/cgroup/$cgroup_name/cgroup.procs"
        (: <"/dev/tcp/${1:-10.96.7.7}/80") 2>&1 | sed -n 's/.*: \(.*\)$/\1/p' | head -n 1
    )
}

# `start DIRECTORY [PACKAGE]`, the one for pins; the default if it is empty, and then the configuration does not set it.
start() {
    dpkg_does --force-confold -i "/tmp/${2:-this}.deb"
    sed -i -e "s|^cgroup = .*|cgroup = \"/sys/fs/cgroup/$cgroup_name\"|" \
        -e "s|^pin-directory = .*|${1:+pin-directory = \"$1\"}|" "$tree/etc/nodelb/nodelb.toml"
    printf '[[service]]\nname = "shop/web"\nfrontends = ["10.96.7.7:80"]\n' >"$tree/etc/nodelb/services.d/shop.toml"
    # It tests its programs with its own connections.
    (
        echo "$BASHPID" >"$tree/sys/fs/cgroup/$cgroup_name/cgroup.procs"
        PATH=/usr/sbin:/usr/bin exec chroot "$tree" nodelb run
    ) >"$work/log" 2>&1 &
    daemon=$!
    for ((i = 0; i < 100; i++)); do
        [ "$(connect)" != "Connection refused" ] || return 0
        sleep 0.1
    done
    cat "$work/log" >&2
    fail "the daemon does not come to work"
}

end() {
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
    daemon=
    rm "$tree/etc/nodelb/services.d/shop.toml"
}

# `with_kernel DIRECTORY [FOREIGN]`: below FOREIGN is what other programs have pinned, or it is empty.
with_kernel() {
    local before foreign=${2:-}
    before=$(files)
    same "without nodelb a service address leads nowhere" "Network is unreachable" "$(connect)"
    start "$1"
    end
    dpkg_does -r nodelb
    same "after removal connections are still translated" "Connection refused" "$(connect)"
    dpkg_does --purge nodelb
    same "after the purge they are not" "Network is unreachable" "$(connect)"
    same "no pin is left${foreign:+ but those of others}" "$foreign" "$(pins)"
    same "no file is left" "" "$(diff <(echo "$before") <(files) || true)"
}

pins() {
    find "$tree/sys/fs/bpf" -mindepth 1 -not -name '*.debug' | sort
}

# Other programs pin in the same directory, also below directories named like a layout version.
among_others() {
    local directory
    for directory in v4l/links v7 v7/g1x v7/maps v8/links/links g1; do
        mkdir -p "$tree/sys/fs/bpf/shared/$directory"
    done
    # The pins are ordinary files here, so create some.
    start /sys/fs/bpf/vendor
    end
    mv "$tree"/sys/fs/bpf/vendor/v1/g*/services "$tree/sys/fs/bpf/shared/v4l/links/connect4"
    mv "$tree"/sys/fs/bpf/vendor/v1/g*/slots "$tree/sys/fs/bpf/shared/v7/maps/pin"
    dpkg_does --purge nodelb
    with_kernel /sys/fs/bpf/shared "$(pins)"
    grep -q "did not make all of it: /sys/fs/bpf/shared/v7" "$work/said" || fail "nothing is said of what is not nodelb's"
    rm -r "$tree/sys/fs/bpf/shared"
}

# There is no systemd that would stop it.
purged_while_it_runs() {
    local before
    before=$(files)
    start /sys/fs/bpf/nodelb
    mkdir -p "$tree/run/nodelb"
    dpkg_does --purge nodelb
    grep -q "a daemon works with /sys/fs/bpf/nodelb and" "$work/said" || fail "nothing is said of a daemon that runs"
    same "a daemon that runs is not disturbed by the purge" "Connection refused" "$(connect)"
    same "nor are its state and its socket" "history.jsonl nodelb" \
        "$(cd "$tree" && find run/nodelb var/lib/nodelb/history.jsonl -printf '%f\n' | sort | xargs)"
    kill -0 "$daemon" || fail "the daemon ended"
    end
    dpkg_does -i /tmp/this.deb
    dpkg_does --purge nodelb
    same "as it says, installing and purging it again ends that" "Network is unreachable" "$(connect)"
    same "no pin is left of it" "" "$(pins)"
    same "no file is left of it" "" "$(diff <(echo "$before") <(files) || true)"
}

# `serves VERSION ADDRESS`: whether the daemon has this version, and serves an address that is new.
serves() {
    printf '[[service]]\nname = "shop/next"\nfrontends = ["%s:80"]\n' "$2" >"$tree/etc/nodelb/services.d/next.toml"
    for ((i = 0; i < 100; i++)); do
        [ "$(connect "$2")" != "Connection refused" ] || break
        sleep 0.1
    done
    (inside nodelb status || true) >"$work/said" 2>&1
    rm "$tree/etc/nodelb/services.d/next.toml"
    ((i < 100)) && grep -q "$1 " "$work/said"
}

# A minor version may refuse keys of the previous one. The packages then leave the daemon alone, which is tested above; here the
# default configuration replaces the kept one.
take_configuration() {
    inside nodelb check-config --keys >"$work/said" 2>&1 && return
    echo "note  $2 refuses keys of the other version:"
    cat "$work/said"
    dpkg-deb --fsys-tarfile "$tree/tmp/$1.deb" | tar -xO ./etc/nodelb/nodelb.toml >"$tree/etc/nodelb/nodelb.toml"
}

# From the package of an earlier version and back, each time with the daemon of the other one.
from_previous() {
    local before each version address=10.96.7.8
    before=$(files)
    start "" previous
    for each in this previous; do
        dpkg_does --force-confold -i "/tmp/$each.deb"
        version=$(inside nodelb --version)
        same "connections are translated while $version is installed" "Connection refused" "$(connect)"
        end
        take_configuration "$each" "$version"
        start "" "$each"
        serves "$version" "$address" || { cat "$work/said" "$work/log" >&2; fail "$version serves no change"; }
        echo "ok    it takes over the maps of the other version, and serves a change"
        address=10.96.7.9
    done
    end
    dpkg_does --purge nodelb
    same "no pin is left of either version" "" "$(pins)"
    same "no file is left of either version" "" "$(diff <(echo "$before") <(files) || true)"
}

next_version
without_systemd
pretend_systemd
with_systemd
make_kernel
with_kernel ""
with_kernel /sys/fs/bpf/elsewhere
among_others
purged_while_it_runs
if [ -n "$previous" ]; then
    from_previous
fi
