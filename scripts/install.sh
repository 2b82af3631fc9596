#!/usr/bin/env bash
# Installs the files of contrib/installed-files under DESTDIR. Prints each destination.
# Paths in the units and the man pages follow PREFIX and SYSCONFDIR. Man pages have the version and the date of the first
# heading of CHANGELOG.md. ZSHDIR: where zsh looks for completions.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr}
sysconfdir=${SYSCONFDIR:-/etc}
sbindir=$prefix/sbin
# No date before the release.
read -r version date < <(sed -n 's/^## \[\([0-9.]*\)\]/\1/p' CHANGELOG.md)
date=${date#- }

place() {
    sed -e "s|@GENERATED@|${TARGET:-target}/generated|" -e "s|@SBINDIR@|$sbindir|" -e "s|@SYSCONFDIR@|$sysconfdir|" \
        -e "s|@UNITDIR@|$prefix/lib/systemd/system|" -e "s|@MANDIR@|$prefix/share/man|" \
        -e "s|@CATALOGDIR@|$prefix/lib/systemd/catalog|" -e "s|@DATADIR@|$prefix/share/nodelb|" \
        -e "s|@SHAREDIR@|$prefix/share|" -e "s|@ZSHDIR@|${ZSHDIR:-$prefix/share/zsh/site-functions}|" \
        -e "s|@DOCDIR@|$prefix/share/doc/nodelb|" contrib/installed-files
}

put() {
    local mode=$1 source=$2 destination=$3 note=$4
    [[ $destination != */ ]] || destination+=${source##*/}
    if [[ $note == keep && -e $DESTDIR$destination ]]; then
        echo "$DESTDIR$destination (kept)"
        return
    fi
    install -D -m "$mode" "$source" "$DESTDIR$destination"
    case $source in
    */systemd/nodelb*.* | *.[58])
        sed -i -e "s|/usr/sbin/nodelb|$sbindir/nodelb|g" -e "s|/etc/nodelb|$sysconfdir/nodelb|g" \
            -e "s|^\(\.TH .*\) \"\" \"nodelb\"|\1 \"$date\" \"nodelb $version\"|" "$DESTDIR$destination"
        ;;
    esac
    if [ "$note" = gzip ]; then
        gzip -9nf "$DESTDIR$destination"
        destination+=.gz
    fi
    echo "$DESTDIR$destination"
}

DESTDIR=${DESTDIR:-}
while read -r mode sources destination note; do
    [[ -n $mode && $mode != '#'* ]] || continue
    if [ "$sources" = - ]; then
        install -d -m "$mode" "$DESTDIR$destination"
        echo "$DESTDIR$destination"
        continue
    fi
    # The pattern is expanded here, on purpose.
    # shellcheck disable=SC2086
    for source in $sources; do
        put "$mode" "$source" "$destination" "$note"
    done
done < <(place)

# On this system, not in the tree of a package: adds nodelb's messages to `journalctl -x`.
if [ -z "$DESTDIR" ] && command -v journalctl >/dev/null; then
    journalctl --update-catalog || echo "run \`journalctl --update-catalog\` as root for \`journalctl -x\`" >&2
fi
