#!/usr/bin/env bash
# Installs, upgrades and erases an rpm in a clean tree, with only the packages that it requires. Needs root. A script
# replaces systemctl and records its calls.
# Usage: packaging/test-rpm.sh PACKAGE STAGE [PREVIOUS]: the directory that it was made from, and a package of an earlier
# version to upgrade from.
set -euo pipefail
package=$(realpath "$1")
stage=$2
previous=${3:-}

work=$(mktemp -d)
tree=$work/tree
trap 'rm -rf "$work"' EXIT

# shellcheck source=packaging/check.sh
. "$(dirname "$0")/check.sh"

inside() {
    PATH=/usr/sbin:/usr/bin chroot "$tree" "$@"
}

# Prints nothing unless it or a scriptlet fails; the output is in $work/said.
rpm_does() {
    local result=0
    rpm --force-debian --root "$tree" --dbpath /var/lib/rpm "$@" >"$work/said" 2>&1 || result=1
    if [ $result = 1 ] || grep -q 'scriptlet failed' "$work/said"; then
        cat "$work/said" >&2
        fail "rpm $*"
    fi
}

# Directories of every system do not belong to a package here.
files() {
    (cd "$tree" && find . -path ./var/lib/rpm -prune -o \( -not -type d -o -path '*nodelb*' \) -print | sort)
}

# Its libraries, as the package names them; `libraries FILE`: as the program does, the loader included.
required() {
    rpm -qp --requires "$package" | sed -n 's/^\([^(]*\.so[^(]*\)(.*/\1/p' | sort -u
}

libraries() {
    ldd "$1" | awk '$3 ~ "^/" { print $3 } $1 ~ "^/" { print $1 }'
}

# A package of those libraries and of the programs that scriptlets call. rpmbuild detects what it provides, including
# symbol versions.
make_base() {
    local base=$work/base file
    {
        libraries "$stage/tree/usr/sbin/nodelb" | grep -F "$(required | sed 's|^|/|')"
        libraries /usr/bin/mkdir
    } | while read -r file; do
        install -D -m 0755 "$(realpath "$file")" "$base$file"
    done
    install -D -m 0755 /bin/dash "$base/bin/sh"
    install -D -m 0755 -t "$base/usr/bin" /bin/mkdir /bin/rmdir /usr/bin/timeout
    cat >"$work/base.spec" <<-'SPEC'
	Name: base
	Version: 1
	Release: 1
	Summary: What nodelb requires
	License: none
	Provides: coreutils, rtld(GNU_HASH)
	%description
	%files
	/*
	SPEC
    mkdir "$work/built"
    rpmbuild -bb --quiet --buildroot "$base" --define "_topdir $work" --define "_rpmdir $work/built" "$work/base.spec"
    mkdir -p "$tree/dev" "$tree/var/lib/rpm"
    mknod "$tree/dev/null" c 1 3
    rpm_does -i "$work"/built/*/base-1-1.*.rpm
}

# The same package with a newer version, another default configuration and another unit.
make_next() {
    cp -r "$stage" "$work/next"
    sed -i 's/^version = .*/version = "999.0.0"/' "$work/next/Cargo.toml"
    echo '# A new default.' >>"$work/next/tree/etc/nodelb/nodelb.toml"
    echo '# new' >>"$work/next/tree/usr/lib/systemd/system/nodelb.service"
    (cd "$work/next" && cargo generate-rpm --auto-req builtin --payload-compress none --target-dir "$work/next" \
        --output "$work/next.rpm")
}

# The systemctl script fails if /fail exists, and reports the daemon as failed or enabled if /failed or /enabled exists.
pretend_systemd() {
    mkdir -p "$tree/run/systemd/system"
    cat >"$tree/usr/bin/systemctl" <<-'STUB'
	#!/bin/sh
	case " $* " in
	*" is-failed "*) [ -e /failed ]; exit ;;
	*" is-enabled "*) [ -e /enabled ]; exit ;;
	esac
	unit=old
	while read -r line; do [ "$line" != "# new" ] || unit=new; done </usr/lib/systemd/system/nodelb.service
	echo "$* ($unit)" >>/asked
	[ ! -e /fail ]
	STUB
    chmod +x "$tree/usr/bin/systemctl"
}

without_systemd() {
    local before
    before=$(files)
    rpm_does -i "$package"
    same "what it requires suffices: the program runs" "nodelb" "$(inside /usr/sbin/nodelb --version | sed 's/ .*//')"
    inside /usr/sbin/nodelb check-config >/dev/null || fail "nodelb check-config"
    same "nothing is enabled" "" "$(find "$tree/etc/systemd" 2>/dev/null)"
    rpm_does -V nodelb
    rpm_does -e nodelb
    same "erasing it leaves nothing" "" "$(diff <(echo "$before") <(files) || true)"
}

with_a_daemon_that_failed() {
    touch "$tree/failed" "$tree/enabled"
    rpm_does -U "$work/next.rpm"
    same "an upgrade starts a daemon that had failed" "daemon-reload (new)"$'\n'"restart nodelb.service (new)" "$(asked)"
    rm "$tree/enabled"
    rpm_does -U --oldpackage "$package"
    same "but not if it is disabled" "daemon-reload (old)"$'\n'"try-restart nodelb.service (old)" "$(asked)"
    rm "$tree/failed"
}

# With a key that the new version does not have. `with_an_old_configuration RESTARTED`: the calls in the other case.
with_an_old_configuration() {
    break_configuration
    rpm_does -U "$work/next.rpm"
    same "a daemon that runs is left alone if the new one would refuse the configuration" "daemon-reload (new)" "$(asked)"
    names_what_is_broken
    lose_kubeconfig
    rpm_does -U --oldpackage "$package"
    same "what the configuration names is no reason" "$1" "$(asked)"
    fix_configuration
}

with_systemd() {
    local units restarted
    units=nodelb.service
    restarted="daemon-reload (old)"$'\n'"try-restart $units (old)"
    rpm_does -i "$package"
    same "installing starts nothing: it restarts what runs" "$restarted" "$(asked)"
    echo '# Mine.' >>"$tree/etc/nodelb/nodelb.toml"
    rpm_does -U "$work/next.rpm"
    same "an upgrade restarts once, with the new files, and stops nothing" "${restarted//old/new}" "$(asked)"
    same "a changed configuration is kept" '# Mine.' "$(tail -n 1 "$tree/etc/nodelb/nodelb.toml")"
    touch "$tree/fail"
    rpm_does -U --oldpackage "$package"
    rm "$tree/fail"
    grep -q "the new daemon did not start" "$work/said" || fail "nothing is said of a restart that did not work"
    same "so does a downgrade, though the restart fails" "$restarted" "$(asked)"
    with_a_daemon_that_failed
    with_an_old_configuration "$restarted"
    sed -i 's|^pin-directory = .*|pin-directory = "/sys/fs/bpf/elsewhere"|' "$tree/etc/nodelb/nodelb.toml"
    mkdir -p "$tree/sys/fs/bpf/elsewhere"
    rpm_does -e nodelb
    grep -q "nodelb cleanup --pin-directory /sys/fs/bpf/elsewhere;" "$work/said" || fail "it is not said how to end translation"
    same "erasing stops it" "--no-reload disable $units (old)"$'\n'"stop $units (old)"$'\n'"daemon-reload (old)" "$(asked)"
}

# From the package of an earlier version and back.
from_previous() {
    local each
    rm -r "$tree/etc/nodelb"
    rpm_does -i "$previous"
    echo '# Mine.' >>"$tree/etc/nodelb/nodelb.toml"
    for each in "$package" "$previous"; do
        rpm_does -U --oldpackage "$each"
        inside /usr/sbin/nodelb check-config --keys >/dev/null 2>&1 ||
            echo "note  ${each##*/} refuses keys of the other version's configuration"
        same "a changed configuration is kept by ${each##*/}" '# Mine.' "$(tail -n 1 "$tree/etc/nodelb/nodelb.toml")"
    done
    rpm_does -e nodelb
}

same "every library of the program is required" "$(libraries "$stage/tree/usr/sbin/nodelb" | sed 's|.*/||' | sort -u)" "$(required)"
make_base
make_next
without_systemd
pretend_systemd
with_systemd
if [ -n "$previous" ]; then
    from_previous
fi
