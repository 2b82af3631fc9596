#!/usr/bin/env bash
# Makes a release of the last commit in $TARGET/dist: the source archive, both packages, an SBOM of the program, the versions
# of the compilers, and the SHA-256 sums. All but the archive is made from the archive, in an empty folder.
# Usage: scripts/dist.sh | check | archive DIRECTORY
# check: makes the release in $TARGET/dist once more, from its archive, in another folder and with other settings of the
# user, compares all files, and tests the packages in clean trees (needs root). archive: makes only the source archive.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${TARGET:-target}")
home=${CARGO_HOME:-$HOME/.cargo}
: "${TOOLS:=$home/nodelb-tools}"

# The archive of the last commit; its files have the time of the commit. Prints its path.
archive() {
    local name
    name=nodelb-$(git show HEAD:Cargo.toml | sed -n 's/^version = "\(.*\)"/\1/p')
    git -c tar.umask=0022 archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$1/$name.tar.gz"
    echo "$1/$name.tar.gz"
}

# The crates that the program names in its section .dep-v0, in JSON that zlib has compressed; and those of the SBOM. Crates
# that only the build needs are in both.
crates_of_program() {
    local section
    section=$(mktemp)
    objcopy -O binary --only-section=.dep-v0 --set-section-flags .dep-v0=alloc "$1" "$section"
    # The same data for gzip, which misses the checksum at the end.
    { printf '\x1f\x8b\x08\0\0\0\0\0\0\0' && tail -c +3 "$section"; } | { gzip -dc 2>/dev/null || [ $? = 1 ]; } |
        grep -oE '"name":"[^"]*","version":"[^"]*"' | cut -d '"' -f 4,8 | sort -u
    rm "$section"
}

crates_of_sbom() {
    sed -n 's/^ *"bom-ref": ".*#\([^"]*\)@\([^"]*\)",$/\1"\2/p' "$1" | sort -u
}

# Equal versions of these make equal files.
versions() {
    rustc -vV | sed -n '1p; s/^\(host\|LLVM\)/\1/p'
    local program
    for program in "${CC:-cc}" "${CLANG:-clang}" ld strip git gzip; do
        "$program" --version | head -n 1
    done
    sed -n 's/^"\(cargo-[^ ]* [^ ]*\) .*/\1/p' "$TOOLS/.crates.toml" | sort
    dpkg-query -f '${Package} ${Version}\n' -W libc6-dev libelf-dev linux-libc-dev zlib1g-dev 2>/dev/null || true
}

# `make_release ARCHIVE DIRECTORY`: the rest, in the directory of the archive. Builds in DIRECTORY.
make_release() {
    local archive=$1 work=$2 released name source
    released=$(dirname "$archive")
    name=$(basename "$archive" .tar.gz)
    source=$work/$name
    rm -rf "$work"
    mkdir -p "$work"
    tar -x -f "$archive" -C "$work"
    SOURCE_DATE_EPOCH=$(stat -c %Y "$source/Cargo.toml")
    export SOURCE_DATE_EPOCH
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET -u CARGO_TARGET_DIR -u CFLAGS -u PACKAGE_VERSION \
        CARGO="cargo auditable" TOOLS="$TOOLS" make -C "$source" deb rpm
    (cd "$source" && cargo cyclonedx --quiet --manifest-path daemon/Cargo.toml --format json --spec-version 1.5 \
        --describe binaries)
    sed "s|path+file://$source/|path+file:///nodelb/|g" "$source/daemon/nodelb_bin.cdx.json" >"$released/$name.cdx.json"
    diff <(crates_of_sbom "$released/$name.cdx.json") <(crates_of_program "$source/target/generated/nodelb")
    echo "ok    the program and the SBOM name the same crates"
    cp "$source"/target/package/nodelb[_-]*.{deb,rpm} "$released"
    versions >"$released/$name.versions"
    (cd "$released" && sha256sum -- nodelb[_-]* >SHA256SUMS)
}

# The same once more, in a folder with another name, with other settings and with Cargo's files in another place.
check() {
    local other
    other=$(mktemp -d "${TMPDIR:-/tmp}/nodelb-once-more.XXXXXX")
    mkdir -p "$other/cargo" "$other/release"
    cp -r "$home/registry" "$other/cargo"
    ln -s "$TOOLS" "$other/cargo/nodelb-tools"
    (
        umask 077
        export TZ=Pacific/Kiritimati LC_ALL=en_US.UTF-8 CARGO_HOME=$other/cargo TOOLS=$other/cargo/nodelb-tools
        make_release "$(archive "$other/release")" "$other/work"
    )
    diff -r "$target/dist" "$other/release"
    echo "ok    the release is the same, bit for bit"
    make -C "$other/work"/nodelb-* -o deb -o rpm package-test
    rm -rf "$other"
}

case ${1:-all} in
all)
    [ -z "$(git status --porcelain)" ] || { echo "Some changes are not committed. A release contains the last commit." >&2; exit 1; }
    rm -rf "$target/dist"
    mkdir -p "$target/dist"
    make_release "$(archive "$target/dist")" "$target/dist-work"
    rm -rf "$target/dist-work"
    cat "$target/dist/SHA256SUMS" ;;
check) check ;;
archive) archive "$2" >/dev/null ;;
esac
