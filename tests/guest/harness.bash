# shellcheck shell=bash
#
# Shared part of the scripts that run in the guest of scripts/guest.sh: they run as root, and $CAIRN
# is the command.
set -eu
cd /tmp
export CAIRN_RUN_HUGE_PAGES=never

# expect WHAT EXPECTED FOUND
expect() {
    if [ "$2" != "$3" ]; then
        printf 'FAILED: %s: expected "%s", found "%s"\n' "$1" "$2" "$3"
        exit 1
    fi
    printf 'ok: %s\n' "$1"
}
