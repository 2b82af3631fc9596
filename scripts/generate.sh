#!/usr/bin/env bash
# Generates the installed files that are not in the repository, for contrib/installed-files: the program without symbols,
# shell completions, licence texts. Usage: scripts/generate.sh DIRECTORY, after cargo build --release.
set -euo pipefail
cd "$(dirname "$0")/.."
generated=$1
program=${TARGET:-target}/release/nodelb
cargo=${CARGO:-cargo}

# The licences of the crates in the program, each text once with the crates that it applies to.
licences() {
    local crates texts name version licence directory file sum
    texts=$(mktemp -d)
    crates=$($cargo tree --locked -p nodelb -e normal --target "$(rustc -vV | sed -n 's/^host: //p')" --prefix none \
        --format '{p} {l}' | sed 's/ (\*)$//' | grep -v ' (/' | sort -u)
    cat <<-END
	nodelb contains the libraries below, which are under licences of their own; it also contains Rust's standard library
	(MIT or Apache-2.0). Where there is a choice, all texts that came with the library are here. The source of each is at
	https://crates.io/crates/NAME/VERSION.

	$crates
	END
    while read -r name version licence; do
        case $name in
        # Published without licence texts; use those of a crate from the same repository.
        asn1-rs-impl) directory=$(source_of asn1-rs '*') ;;
        # Published without a licence text; use the same one (Apache-2.0) of a crate that they depend on.
        kube | kube-client | kube-core) directory=$(source_of k8s-openapi '*') ;;
        *) directory=$(source_of "$name" "${version#v}") ;;
        esac
        # libbpf-sys includes elfutils and zlib, but the program does not use these copies.
        find "$directory" -maxdepth 2 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \
            -o -iname unlicense \) -not -path '*/elfutils/*' -not -path '*/zlib/*' -not -name '*.rs' | sort >"$texts/list"
        [ -s "$texts/list" ] || { echo "no licence text in $directory ($licence)" >&2; return 1; }
        while read -r file; do
            sum=$(tr -d '\r' <"$file" | sha256sum | cut -c 1-64)
            tr -d '\r' <"$file" >"$texts/$sum.text"
            echo "$name ${version#v} (${file#"$directory"/})" >>"$texts/$sum.from"
        done <"$texts/list"
    done <<<"$crates"
    for file in "$texts"/*.text; do
        printf '\n%s\n' "================================================================================"
        sort -u "${file%.text}.from"
        printf '%s\n\n' "--------------------------------------------------------------------------------"
        cat "$file"
    done
    rm -r "$texts"
}

source_of() {
    local directory
    # The version may be a pattern.
    # shellcheck disable=SC2231
    for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$1"-$2; do
        [ ! -d "$directory" ] || { echo "$directory"; return; }
    done
    echo "the source of $1 $2 is not below ${CARGO_HOME:-$HOME/.cargo}" >&2
    return 1
}

mkdir -p "$generated"
# Backtraces lose line numbers; panic messages keep them, and $program has the debug information.
strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "$generated/nodelb" "$program"
"$program" completions bash >"$generated/nodelb.bash"
"$program" completions zsh >"$generated/_nodelb"
"$program" completions fish >"$generated/nodelb.fish"
licences >"$generated/THIRD-PARTY-LICENSES"
