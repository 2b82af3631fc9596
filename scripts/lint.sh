#!/usr/bin/env bash
# Everything a reviewer should not have to say. Runs all checks, then fails if one did.
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

# The fuzz workspace has a lock file of its own, which follows the dependencies of nodelb.
fuzz_lock() {
    cargo metadata --locked --quiet --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
}

# Prints what it reads, and fails if there was any.
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
        # By their first line, and what scripts read in by its name.
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
        awk '$2 != "total" && $1 > 500 { print $2 ": " $1 " lines, the budget is 500: is it really one idea?" }' | none
}

# The word alone also occurs in prose and in `forbid(unsafe_code)`; these forms are code.
unsafe_elsewhere() {
    sources '*.rs' | grep -v '^daemon/datapath/' |
        xargs --no-run-if-empty grep -nHE '\bunsafe +(\{|fn|impl|trait|extern)|(allow|expect)\(unsafe_code' | none
}

import_cycles() {
    scripts/import-cycles.sh daemon/core/src
}

# DESIGN section 2: one word for one thing. Looks at file names, at what Rust code defines and at what C code names.
words='vip|real|upstream|manager|handler|utils?|helpers?|common'

word_in_file_names() {
    sources | grep -iE "(^|[/_.-])($words)([/_.-]|$)" | none
}

word_in_rust() {
    local definition='\b(fn|struct|enum|trait|mod|type|const|static|let( mut)?|macro_rules!)\s+'
    local camel
    camel=$(sed -E 's/(^|\|)(.)/\1\u\2/g' <<<"$words")
    sources '*.rs' | xargs --no-run-if-empty grep -nHP \
        "$definition(\w*_)?(?i:$words)(_\w*)?\b|$definition\w*($camel)([A-Z]\w*)?\b" | none
}

# Structs of the kernel's own have the kernel's names.
word_in_c() {
    local code='^(?!\s*(#include|/?\*|//|struct (ns|sock)_common\b)).*'
    sources 'bpf/*.c' 'bpf/*.h' |
        xargs --no-run-if-empty grep -nHP "$code\b(\w*_)?($words)(_\w*)?\b\s*[(\[;={,]" | none
}

# The package that has it also starts a server, so it is not asked for; a test reads the rules in any case.
promtool_rules() {
    ! command -v promtool >/dev/null || promtool check rules contrib/prometheus/*.yaml >/dev/null
}

# As systemd reads them; it wants the program that a unit starts to be there.
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

# 2.0 of 10 points at most, where 10 is no protection at all: `systemd-analyze security --offline=true UNIT` lists them.
units_are_closed() {
    local unit status=0
    for unit in contrib/systemd/*.service; do
        systemd-analyze security --offline=true --no-pager --threshold=20 "$unit" >/dev/null || status=1
        # The points, in the log of CI.
        systemd-analyze security --offline=true --no-pager "$unit" | tail -n 1
    done
    return "$status"
}

check "cargo fmt" cargo fmt --all --check
check "cargo fmt: fuzz" cargo fmt --manifest-path fuzz/Cargo.toml --check
check "fuzz/Cargo.lock" fuzz_lock
check "cargo clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
check "clang-format" clang_format_all
check "shellcheck" shellcheck_all
check "units: what systemd makes of them" units_are_read
check "units: systemd-analyze security, 2.0 at most" units_are_closed
check "alerts: promtool, if it is here" promtool_rules
check "files of at most 500 lines" too_long
check "unsafe code only in nodelb-datapath" unsafe_elsewhere
check "no import cycle in nodelb-core" import_cycles
check "words: file names" word_in_file_names
check "words: Rust" word_in_rust
check "words: C" word_in_c
exit $failed
