#!/usr/bin/env bash
# Checks the packages of make deb and make rpm, and tests them in clean trees, which needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath "${TARGET:-target}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$target/package/deb/Cargo.toml")
deb=$(ls "$target/package/nodelb_$version-1_"*.deb)
rpm=$(ls "$target/package/nodelb-$version-1."*.rpm)
[ "$(id -u)" = 0 ] && sudo=() || sudo=(sudo env "PATH=$PATH" "HOME=$HOME")

# Both install the same files, except for zsh's directory and the files that only Debian needs.
contents() {
    sed -e 's|^\./|/|' -e 's|/zsh/vendor-completions/|/zsh/site-functions/|' -e '/\/$/d' -e '/\/lintian\//d' \
        -e '/\/copyright$/d' -e '/\/changelog\.Debian\.gz$/d' | sort
}
diff <(dpkg-deb --fsys-tarfile "$deb" | tar -t | contents) <(rpm -qpl "$rpm" | contents)
echo "ok    both packages contain the same files"
lintian --allow-root --fail-on error,warning "$deb"
echo "ok    lintian"
rpmlint --strict --config packaging/rpmlint.toml "$rpm" >"$target/package/rpmlint.log" ||
    { cat "$target/package/rpmlint.log"; exit 1; }
echo "ok    rpmlint"
"${sudo[@]}" packaging/test-deb.sh "$deb"
"${sudo[@]}" packaging/test-rpm.sh "$rpm" "$target/package/rpm"
