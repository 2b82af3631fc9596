#!/usr/bin/env bash
# All automatic checks of the code. Runs all of them, then fails if one has failed.
# shellcheck disable=SC2317 # the checks are called by name
set -u
cd "$(dirname "$0")/.." || exit 1

failed=0

check() {
    local what=$1
    shift
    if "$@"; then
        echo "ok    $what"
    else
        echo "FAIL  $what"
        failed=1
    fi
}

# The fuzz workspace has its own lock file, which must match the dependencies of nodelb.
fuzz_lock() {
    cargo metadata --locked --quiet --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
}

# Prints its input, and fails if there is any.
none() {
    ! grep . >&2
}

sources() {
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
        [ ! -e "$file" ] || echo "$file"
    done
}

shell_scripts() {
    sources | while read -r file; do
        # Scripts by their first line, and sourced files by their name.
        if [[ $file == *.sh ]] || head -c 64 "$file" | head -n 1 | grep -qaE '^#!.*\b(bash|sh)$'; then echo "$file"; fi
    done
}

shellcheck_all() {
    shell_scripts | xargs --no-run-if-empty shellcheck
}

clang_format_all() {
    sources '*.c' '*.h' | xargs --no-run-if-empty clang-format --dry-run -Werror
}

too_long() {
    sources '*.rs' '*.c' '*.h' '*.sh' | grep -vE '(^|/)tests?(/|\.rs$)' | xargs --no-run-if-empty wc -l |
        awk '$2 != "total" && $1 > 500 { print $2 ": " $1 " lines, the budget is 500: split it" }' | none
}

# What a newcomer reads fits on a few screens, and all documents of users fit into a day. A word has a letter or a digit.
documents_too_long() {
    local words
    words=$(cat README.md docs/*.md contrib/man/* | grep -oE '[^[:space:]]*[[:alnum:]][^[:space:]]*' | wc -l)
    {
        wc -l README.md ARCHITECTURE.md docs/development/tour.md | awk '
            BEGIN { most["README.md"] = 150; most["ARCHITECTURE.md"] = 300; most["docs/development/tour.md"] = 60 }
            $2 in most && $1 > most[$2] { print $2 ": " $1 " lines, the budget is " most[$2] }'
        [ "$words" -le 50000 ] || echo "README.md, docs/ and contrib/man: $words words, the budget is 50000"
    } | none
}

# The scratch memory of the packet programs is an argument of every step: where several files assign a number of it, the comment
# at the field names them. Numbers that functions get by address are not found. events.h has a `here` of its own.
scratch_fields() {
    local field comment file count
    awk '/^struct scratch \{/ { inside = 1; next } /^\};/ { inside = 0 }
        !inside { next }
        /\/\*/ { comment = ""; open = 1 }
        open { comment = comment " " $0; if (/\*\//) open = 0; next }
        /^\t__[us]/ && match($0, /[a-z_0-9]+(\[[^;]*\])?;/) { name = substr($0, RSTART, RLENGTH); sub(/[[;].*/, "", name); print name, comment }
        ' bpf/scratch.h | while read -r field comment; do
        count=$(setters "$field" | wc -l)
        [ "$count" -le 1 ] || setters "$field" | while read -r file; do
            [[ $comment = *[[:space:]]"$file"* ]] || echo "bpf/scratch.h: $file sets $field, too: say so in its comment, and why"
        done
    done | none
}
setters() {
    grep -lE "\bhere->$1(\.[a-z_0-9]+)*(\[[^]]*\])* ?([|&+-]?= |\+\+|--)" bpf/*.[ch] | xargs --no-run-if-empty -n 1 basename |
        grep -vx events.h
}

# Matches only code: the word also occurs in prose and in `forbid(unsafe_code)`.
unsafe_elsewhere() {
    sources '*.rs' | grep -v '^daemon/datapath/' |
        xargs --no-run-if-empty grep -nHE '\bunsafe +(\{|fn|impl|trait|extern)|(allow|expect)\(unsafe_code' | none
}

# ARCHITECTURE.md, "Where things are": what a package of the workspace may depend on. Above all, nothing above it.
packages() {
    local package edges allowed
    while read -r package edges allowed; do
        cargo tree --locked --edges "$edges" --prefix none --package "$package" | grep -oE '^(nodelb|libbpf)[a-z-]* v' | sort -u |
            sed "s/ v$//; s/^/$package depends on /" | grep -vE " on ($package$allowed)\$"
    done <<-END | none
	nodelb-core all
	nodelb-programs no-dev |nodelb-core
	nodelb-datapath all |nodelb-core|libbpf-rs|libbpf-sys|libbpf-cargo
	nodelb-report all |nodelb-core
	nodelb-host all
	nodelb-kube all |nodelb-core|nodelb-host
	nodelb-cli all |nodelb-core|nodelb-host|nodelb-kube|nodelb-report
	nodelb-sources no-dev |nodelb-core|nodelb-host|nodelb-kube|nodelb-report
	nodelb no-dev |nodelb-(core|datapath|report|host|kube|cli|sources)|libbpf-rs|libbpf-sys|libbpf-cargo
	END
}

# The name of each is in a source of the package, or, if it has targets elsewhere, of the tests and benchmarks.
unused_dependencies() {
    local manifest folders name
    for manifest in $(sources '*Cargo.toml'); do
        folders=("$(dirname "$manifest")")
        ! grep -q '^path = "\.\./' "$manifest" || folders+=(tests benches)
        sed -n '/dependencies\]/,/^$/p' "$manifest" | grep -oE '^[A-Za-z0-9_-]+' | while read -r name; do
            [ "$manifest" = Cargo.toml ] || sources "${folders[@]}" | grep '\.rs$' | xargs grep -qw "${name//-/_}" ||
                echo "$manifest: $name is not used"
        done
    done | none
}

# ARCHITECTURE.md, "Where things are": the modules of a package import only what is below them, and no source another one:
# each folder of daemon/sources is one.
modules() {
    local folder siblings status=0
    for folder in $(sources 'daemon/*/src/lib.rs' daemon/src/lib.rs tests/programs/src/lib.rs | xargs -n 1 dirname); do
        siblings=()
        [ "$folder" != daemon/sources/src ] ||
            mapfile -t siblings < <(find "$folder" -mindepth 1 -maxdepth 1 -type d ! -name tests -printf '%f\n')
        scripts/import-cycles.sh "$folder" "${siblings[@]}" || status=1
    done
    return "$status"
}

# The check above finds a circle, an import of a sibling and an import upwards in a package that has only one of them.
modules_are_checked() {
    local scratch status=0
    scratch=$(mktemp -d) || return
    mkdir "$scratch/below"
    echo 'pub mod below; pub mod first; pub mod second;' >"$scratch/lib.rs"
    echo 'pub mod child; pub struct Below;' >"$scratch/below.rs"
    echo 'pub struct Child;' >"$scratch/below/child.rs"
    echo 'use crate::second::Second; pub struct First;' >"$scratch/first.rs"
    echo 'pub struct Second;' >"$scratch/second.rs"
    scripts/import-cycles.sh "$scratch" first below || status=1
    scripts/import-cycles.sh "$scratch" first second 2>&1 | grep -q 'first uses its sibling second' || status=1
    echo 'use crate::first::First; pub struct Second;' >"$scratch/second.rs"
    scripts/import-cycles.sh "$scratch" 2>&1 | grep -q circle || status=1
    echo 'pub struct Second;' >"$scratch/second.rs"
    echo 'use super::Below; pub struct Child;' >"$scratch/below/child.rs"
    scripts/import-cycles.sh "$scratch" 2>&1 | grep -q 'below/child uses what its parent below defines' || status=1
    rm -r "$scratch"
    return "$status"
}

# Names that are too vague. Checks file names, definitions in Rust and identifiers in C.
words='vip|real|upstream|manager|handler|utils?|helpers?|common'

word_in_file_names() {
    # bpf_helpers.h is libbpf's name.
    sources | grep -v '/bpf_helpers\.h$' | grep -iE "(^|[/_.-])($words)([/_.-]|$)" | none
}

word_in_rust() {
    local definition='\b(fn|struct|enum|trait|mod|type|const|static|let( mut)?|macro_rules!)\s+'
    local camel
    camel=$(sed -E 's/(^|\|)(.)/\1\u\2/g' <<<"$words")
    sources '*.rs' | xargs --no-run-if-empty grep -nHP \
        "$definition(\w*_)?(?i:$words)(_\w*)?\b|$definition\w*($camel)([A-Z]\w*)?\b" | none
}

# Structs of the kernel keep their names.
word_in_c() {
    local code='^(?!\s*(#include|/?\*|//|struct (ns|sock)_common\b)).*'
    sources 'bpf/*.c' 'bpf/*.h' |
        xargs --no-run-if-empty grep -nHP "$code\b(\w*_)?($words)(_\w*)?\b\s*[(\[;={,]" | none
}

# Plain English, see CONTRIBUTING.md. The lists are in scripts/words/: rejected words, exempt paths, and quotations.
rejected_words() {
    sed '/^#/d; /^$/d; s|/$|/*|; s/^/:(exclude)/' scripts/words/exempt-paths | {
        mapfile -t exempt
        sources . "${exempt[@]}"
    } | scripts/words.pl scripts/words/rejected scripts/words/quotations | none
}

# Each alert has a test: when it fires, when it does not, and that it ends.
promtool_rules() {
    local alert
    promtool check rules contrib/prometheus/*.yaml >/dev/null && promtool test rules tests/alerts/*.yaml >/dev/null &&
        sed -n 's/^ *- alert: //p' contrib/prometheus/nodelb.rules.yaml | while read -r alert; do
            grep -q "^  - name: $alert\$" tests/alerts/nodelb.test.yaml || echo "no test of the alert $alert"
        done | none
}

# systemd verifies that the program of a unit exists, so replace it.
units_are_read() {
    local scratch status
    scratch=$(mktemp -d) || return
    cp contrib/systemd/*.service contrib/systemd/*.socket "$scratch" &&
        sed -i 's|/usr/sbin/nodelb|/bin/true|' "$scratch"/*.service &&
        systemd-analyze verify --man=no --recursive-errors=no "$scratch"/*
    status=$?
    rm -r "$scratch"
    return "$status"
}

# An exposure of at most 2.0 (10 is no protection): `systemd-analyze security --offline=true UNIT` lists the details.
units_are_closed() {
    local unit status=0
    for unit in contrib/systemd/*.service; do
        systemd-analyze security --offline=true --no-pager --threshold=20 "$unit" >/dev/null || status=1
        # The exposure, for the log of CI.
        systemd-analyze security --offline=true --no-pager "$unit" | tail -n 1
    done
    return "$status"
}

# What is started again as often as nodelb must not count starts: systemd refuses the sixth within ten seconds. An instance
# of a template has a name of its own.
units_start_again() {
    grep -LE '^StartLimitIntervalSec=0$' contrib/systemd/*[!@].{service,socket} | none
}

check "cargo fmt" cargo fmt --all --check
check "cargo fmt: fuzz" cargo fmt --manifest-path fuzz/Cargo.toml --check
check "fuzz/Cargo.lock" fuzz_lock
check "cargo clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
check "clang-format" clang_format_all
check "shellcheck" shellcheck_all
check "units: systemd-analyze verify" units_are_read
check "units: no limit of starts" units_start_again
check "units: systemd-analyze security, 2.0 at most" units_are_closed
check "alerts: promtool" promtool_rules
check "files of at most 500 lines" too_long
check "bpf: who sets a field of the scratch memory" scratch_fields
check "documents within their budgets" documents_too_long
check "unsafe code only in nodelb-datapath" unsafe_elsewhere
check "packages depend downwards" packages
check "dependencies are used" unused_dependencies
check "modules import downwards" modules
check "modules import downwards: what is wrong is found" modules_are_checked
check "words: file names" word_in_file_names
check "words: Rust" word_in_rust
check "words: C" word_in_c
check "words: plain English" rejected_words
exit $failed
