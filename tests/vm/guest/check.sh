# How the guest tells what it sees: a line for each check, `ok` or `FAIL`, with what the command printed if it failed.
# shellcheck shell=bash

check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "ok    $what"
    else
        echo "FAIL  $what"
        printf '%s\n' "$output" | tail -n 30 | sed 's/^/        /'
    fi
}

# Prints what it reads, and fails if there was any.
none() {
    ! grep .
}

# Waits for a command to succeed: at most the seconds given. Emulation is slow, so nothing else is asked of time.
within() {
    local seconds=$1 end
    shift
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            echo "not within $seconds s: $*"
            "$@"
            return
        fi
        sleep 0.2
    done
}
