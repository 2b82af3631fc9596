#!/usr/bin/env bash
# Fails if modules of a package import each other in a circle. Arguments: the folder with its lib.rs, and the modules there
# that must not import each other at all.
#
# A module is a file. Looked at is every path that code, not a comment or a test, begins with crate::, super:: or the name
# of a child. At each level of the tree a module stands for all that is below it, so what is clean here is a stack of
# layers. A module below another may use what its parent's file defines only in engine/, whose steps are methods of Engine.
set -eu
cd "$1"
siblings=" ${*:2} "

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

find . -name '*.rs' ! -name lib.rs ! -name tests.rs ! -path '*/tests/*' | sed 's|^\./||; s|\.rs$||' | sort >"$scratch/modules"
mapfile -t modules <"$scratch/modules"

# "importer imported", both as paths such as state/entries, once for each import.
for module in "${modules[@]}"; do
    awk -v module="$module" '
        NR == FNR { is_module[$1] = 1; next }
        /^#\[cfg\(test\)\]$/ { exit }
        { sub(/(^|[ \t])\/\/.*/, ""); gsub(/pub\(in [^)]*\)/, "pub"); code = code " " $0 }

        function parent(path) { return sub(/\/[^\/]*$/, "", path) ? path : "." }

        # The module in which the path ends: its longest part that is one.
        function found(path) {
            while (path != "." && !(path in is_module)) path = parent(path)
            return path
        }

        function add(path) {
            gsub(/::/, "/", path)
            from = module
            if (path ~ /^crate\//) { sub(/^crate\//, "", path); from = "." }
            else if (path ~ /^self\//) sub(/^self\//, "", path)
            while (sub(/^super\//, "", path)) from = parent(from)
            to = found(from == "." ? path : from "/" path)
            if (to != "." && to != module) print module, to
        }

        # A group names each of its paths after what stands before it.
        function expand(text,   head, rest, count, parts, at) {
            if (match(text, /\{[^{}]*\}/)) {
                head = substr(text, 1, RSTART - 1)
                rest = substr(text, RSTART + 1, RLENGTH - 2)
                if (head ~ /\{/) { print "nested group in a use of " module > "/dev/stderr"; exit 1 }
                count = split(rest, parts, /,/)
                for (at = 1; at <= count; at++) { gsub(/[ \t]/, "", parts[at]); if (parts[at] != "") add(head parts[at]) }
            } else add(text)
        }

        END {
            rest = code
            while (match(rest, /(^|[^A-Za-z0-9_])use +[^;]*;/)) {
                use = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                sub(/^.*use +/, "", use); sub(/;$/, "", use)
                first = use; sub(/::.*/, "", first)
                if (first ~ /^(crate|super|self)$/ || (module "/" first) in is_module) expand(use)
            }
            # The same in the code itself.
            rest = code
            gsub(/(^|[^A-Za-z0-9_])use +[^;]*;/, " ", rest)
            while (match(rest, /(crate|super)(::[A-Za-z0-9_]+)+/)) {
                add(substr(rest, RSTART, RLENGTH))
                rest = substr(rest, RSTART + RLENGTH)
            }
        }
    ' "$scratch/modules" "$module.rs"
done >"$scratch/imports"

[ -s "$scratch/imports" ] || { echo "$1: no import was found" >&2; exit 1; }

status=0

upwards=$(awk '$1 ~ "^" $2 "/" && $2 != "engine" { print $1 " uses what its parent " $2 " defines" }' "$scratch/imports" | sort -u)
[ -z "$upwards" ] || { echo "$upwards" >&2; status=1; }

aside=$(awk -v siblings="$siblings" '
    function is_one(path) { return index(siblings, " " path " ") }
    { from = $1; to = $2; sub(/\/.*/, "", from); sub(/\/.*/, "", to) }
    from != to && is_one(from) && is_one(to) { print $1 " uses its sibling " $2 }
' "$scratch/imports" | sort -u)
[ -z "$aside" ] || { echo "$aside" >&2; status=1; }

# Each folder, with its modules collapsed to its own level.
{ echo; sed -n 's|/[^/]*$|/|p' "$scratch/modules" | sort -u; } | while read -r folder; do
    awk -v folder="$folder" '
        function at_level(path) {
            if (index(path, folder) != 1) return ""
            path = substr(path, length(folder) + 1)
            sub(/\/.*/, "", path)
            return folder path
        }
        { from = at_level($1); to = at_level($2) }
        from != "" && to != "" && from != to { print from, to }
    ' "$scratch/imports" | sort -u >"$scratch/level"
    if ! tsort "$scratch/level" >/dev/null 2>"$scratch/loop"; then
        echo "a circle among the modules of $1/$folder:"
        sed -n 's/^tsort: \([^ ]*\)$/  \1/p' "$scratch/loop" | grep -v 'input contains a loop'
    fi
done >"$scratch/circles"
if [ -s "$scratch/circles" ]; then
    cat "$scratch/circles" >&2
    status=1
fi
exit "$status"
