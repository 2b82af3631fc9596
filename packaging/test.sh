#!/usr/bin/env bash
# Checks the packages of make deb and make rpm, and tests them in clean trees, which needs root. PREVIOUS: packages of an
# earlier version, separated by spaces, to upgrade from.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath "${TARGET:-target}")
# The staging folder may have that of a newer package, which make vm-test makes.
version=${PACKAGE_VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
deb=$(ls "$target/package/nodelb_$version-1_"*.deb)
rpm=$(ls "$target/package/nodelb-$version-1."*.rpm)
[ "$(id -u)" = 0 ] && sudo=() || sudo=(sudo env "PATH=$PATH" "HOME=$HOME")

# Both install the same files, except for zsh's directory and the files that only Debian needs.
contents() {
    sed -e 's|^\./|/|' -e 's|/zsh/vendor-completions/|/zsh/site-functions/|' -e '/\/$/d' -e '/\/lintian\//d' \
        -e '/\/copyright$/d' -e '/\/changelog\.Debian\.gz$/d' | sort
}
# The packages of the second run, with other settings of the user and on one processor, are equal to those of the first.
made_again() {
    local again status=0
    again=$(mktemp -d)
    mkdir "$again/elsewhere"
    cp -r "$target/generated" "$again/elsewhere"
    (
        umask 077
        SOURCE_DATE_EPOCH=$(rpm -qp --qf '%{BUILDTIME}' "$rpm")
        export SOURCE_DATE_EPOCH TARGET=$again/elsewhere PACKAGE_VERSION=$version TZ=Pacific/Kiritimati LC_ALL=en_US.UTF-8
        taskset -c 0 packaging/build.sh deb
        taskset -c 0 packaging/build.sh rpm
    ) >"$again/log" 2>&1 || { cat "$again/log" >&2; status=1; }
    cmp "$deb" "$again/elsewhere/package/${deb##*/}" && cmp "$rpm" "$again/elsewhere/package/${rpm##*/}" || status=1
    rm -r "$again"
    return $status
}

# The same for the source archive, which contains all files of the repository. Without a repository, this is the archive.
archived_again() {
    local again status=0
    again=$(mktemp -d)
    mkdir "$again/one" "$again/two"
    scripts/dist.sh archive "$again/one"
    (umask 077 && TZ=Pacific/Kiritimati scripts/dist.sh archive "$again/two")
    diff -r "$again/one" "$again/two" || status=1
    diff <(git ls-tree -r --name-only HEAD | sort) \
        <(tar -tf "$again"/one/nodelb-*.tar.gz | sed -n 's|^[^/]*/\(.*[^/]\)$|\1|p' | sort) || status=1
    rm -r "$again"
    return $status
}

made_again
echo "ok    packages that are made again are equal"
if [ -e .git ]; then
    archived_again
    echo "ok    source archives that are made again are equal"
fi
named=$(grep -aoF -e "$(pwd -P)" -e "$target" -e "${CARGO_HOME:-$HOME/.cargo}" "$target/generated/nodelb" | sort | uniq -c || true)
[ -z "$named" ] || { printf 'The program names:\n%s\n' "$named" >&2; exit 1; }
echo "ok    the program names no directory of this machine"
diff <(dpkg-deb --fsys-tarfile "$deb" | tar -t | contents) <(rpm -qpl "$rpm" | contents)
echo "ok    both packages contain the same files"
lintian --allow-root --fail-on error,warning "$deb"
echo "ok    lintian"
rpmlint --strict --config packaging/rpmlint.toml "$rpm" >"$target/package/rpmlint.log" ||
    { cat "$target/package/rpmlint.log"; exit 1; }
echo "ok    rpmlint"
read -ra previous <<<"${PREVIOUS:-}"
of_kind() {
    printf '%s\n' "${previous[@]}" | grep "\.$1\$" || true
}
"${sudo[@]}" packaging/test-deb.sh "$deb" "$(of_kind deb)"
"${sudo[@]}" packaging/test-rpm.sh "$rpm" "$target/package/rpm" "$(of_kind rpm)"
