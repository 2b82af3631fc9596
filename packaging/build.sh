#!/usr/bin/env bash
# Builds a package of the files in contrib/installed-files. Usage: packaging/build.sh deb | rpm, after make build.
# PACKAGE_VERSION: another version than Cargo.toml's (three numbers), to try an upgrade. Prints the package's path.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
target=$(realpath "${TARGET:-target}")
stage=$target/package/$kind
# What stands in Cargo.toml for the whole workspace, without its brackets and quotes.
workspace() {
    sed -n '/^\[workspace.package\]/,/^\[/s/^'"$1"' = \[*"\([^"]*\)"]*$/\1/p' Cargo.toml
}
version=${PACKAGE_VERSION:-$(workspace version)}

# Equal files make an equal package: the time is that of the commit, which a source archive gives to its files.
umask 022
export LC_ALL=C TZ=UTC
commit_time() {
    if [ -e .git ]; then git log -1 --format=%ct; else stat -c %Y Cargo.toml; fi
}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit_time)}
export SOURCE_DATE_EPOCH

rm -rf "$stage"
mkdir -p "$stage"
[ "$kind" != deb ] || export ZSHDIR=/usr/share/zsh/vendor-completions
PREFIX=/usr SYSCONFDIR=/etc DESTDIR=$stage/tree scripts/install.sh >/dev/null
if [ "$kind" = deb ]; then
    documentation=$stage/tree/usr/share/doc/nodelb
    sed '/^@BSD@$/{r /dev/stdin
        d}' packaging/copyright < <(sed -n '/^Copyright the/,$s/^/ /p' LICENSE-BPF | sed 's/^ $/ ./') >"$documentation/copyright"
    install -D -m 0644 packaging/deb/lintian-overrides "$stage/tree/usr/share/lintian/overrides/nodelb"
fi

# The tree contains the installed files; the packaging tools need lists of them.
directories=$(cd "$stage/tree" && find . -type d -empty -printf ' /%P\n' | sort | tr -d '\n')
own_directories=$(cd "$stage/tree" && find . -type d -path '*/nodelb*' -printf ' /%P\n' | sort -r | tr -d '\n')
# The units that can be enabled; the other units depend on these.
units=$(cd "$stage/tree/usr/lib/systemd/system" && grep -l '^\[Install\]' -- * | xargs)
deb_assets=$(cd "$stage/tree" && find . -type f -printf '    ["tree/%P", "%P", "%m"],\n' | sort)
rpm_assets=$(cd "$stage/tree" && find . -type f -printf '    { source = "tree/%P", dest = "/%P", mode = "%m" },\n' | sort |
    sed -e '/dest = "\/etc\//s/ }/, config = "noreplace" }/' -e '/dest = "\/usr\/share\/\(doc\|man\)\//s/ }/, doc = true }/')

fill() {
    sed -e "s|@VERSION@|$version|" -e "s|@HOMEPAGE@|$(workspace homepage)|" -e "s|@AUTHORS@|$(workspace authors)|" \
        -e "s|@UNITS@|$units|" -e "s|@DIRECTORIES@|${directories# }|" -e "s|@OWN_DIRECTORIES@|${own_directories# }|" \
        -e '/^@DEB_ASSETS@$/{r '<(echo "$deb_assets") -e 'd}' -e '/^@RPM_ASSETS@$/{r '<(echo "$rpm_assets") -e 'd}' "$1"
}

fill packaging/metadata.toml >"$stage/Cargo.toml"
for script in packaging/"$kind"/*; do
    [ "${script##*/}" != lintian-overrides ] || continue
    fill "$script" | install -D -m 0755 /dev/stdin "$stage/scripts/$kind/${script##*/}"
done

cd "$stage"
case $kind in
deb)
    printf 'nodelb (%s-1) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$version" \
        "See /usr/share/doc/nodelb/changelog.gz for the changes." \
        "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' Cargo.toml)" "$(date -R -d "@$SOURCE_DATE_EPOCH")" >changelog
    cargo deb --no-build --no-strip --output "$target/package/" ;;
rpm)
    cargo generate-rpm --auto-req builtin --target-dir "$target" --output "$target/package/" ;;
esac
