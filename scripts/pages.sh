#!/usr/bin/env bash
# The page of `cairn report` in a headless browser: it is laid out, logs no errors, and differs in
# light and dark.
#
#   scripts/pages.sh [DIRECTORY]       keeps the page and its pictures there, for inspection
#   CAIRN=PATH                         the command to test (default: target/release/cairn)
#
# Must stay true: each failed check is named, and the exit code says whether any failed. The script
# writes only below a temporary directory, or the one given, and in shared memory.
set -uo pipefail

COMMAND=$(realpath "${CAIRN:-$(dirname "${BASH_SOURCE[0]}")/../target/release/cairn}")
readonly COMMAND
readonly PICTURES_MIN=5

place=${1:-$(mktemp -d)}
mkdir -p "$place/out" "$place/root" || exit 2
place=$(realpath "$place")
export CAIRN_STORE_ROOT=$place/root
[ $# -gt 0 ] || trap 'rm -rf "$place"' EXIT
failed=0

check() {
    local what=$1
    shift
    if "$@"; then
        printf 'ok      %s\n' "$what"
    else
        printf 'FAILED  %s\n' "$what"
        failed=1
    fi
}

browse() {
    timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr \
        --user-data-dir="$place/browser" --window-size=1040,1900 "$@" "file://$place/page.html" 2>>"$place/browser.log"
}

# Two ranks write two checkpoints, and read.
write_and_read='
for step in 1 2; do
    for rank in 0 1; do
        (for part in 1 2 3 4 5 6; do head -c 4M /dev/zero; sleep 0.1; done >"/cairn/ckpt.$step.$rank") &
    done
    wait
    sleep 1.2
done
exec 5</cairn/ckpt.1.0
for part in 1 2 3 4 5; do head -c 2M <&5 >/dev/null; sleep 0.1; done'

check 'a job runs' "$COMMAND" run --job page --tier ram:256M --persist "$place/out" -- bash -c "$write_and_read"
check 'its page is written' "$COMMAND" report page --persist "$place/out" --device-bandwidth 200M -o "$place/page.html"
browse --dump-dom >"$place/dom.html"
pictures=$(grep -c 'role="img"' "$place/dom.html")
check "it has $PICTURES_MIN pictures" [ "$pictures" -ge "$PICTURES_MIN" ]
check 'each of them has a title and a text' [ "$(grep -c '<desc id=' "$place/dom.html")" -eq "$pictures" ]
browse --screenshot="$place/light.png" --blink-settings=preferredColorScheme=1
browse --screenshot="$place/dark.png" --blink-settings=preferredColorScheme=0
check 'it can be seen' [ "$(wc -c <"$place/light.png")" -gt 20000 ]
check 'it is another one in the dark' [ "$(cmp "$place/light.png" "$place/dark.png" 2>&1 | grep -c differ)" -eq 1 ]
check 'the browser complains of nothing in it' [ "$(grep -c 'CONSOLE' "$place/browser.log")" -eq 0 ]
exit "$failed"
