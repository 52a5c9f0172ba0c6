#!/usr/bin/env bash
# Unmodified programs on Cairn: every scenario runs twice, once in a directory on a disk and once
# below Cairn's mount prefix, and must not notice a difference.
#
#   tests/apps/run.sh [--list] [--only PATTERN] [--keep] [--long] [FAMILY…]
#
#   FAMILY        a file of tests/apps/families without ".sh" (default: all)
#   --only GLOB   only scenarios whose name matches
#   --list        name the scenarios and stop
#   --keep        leave the scratch directory of a failed run in place
#   --long        also scenarios that need packages from "make apps", which take longer
#   CAIRN=PATH    the command to test (default: target/debug/cairn, else target/release/cairn);
#                 libcairn_preload.so is taken from the same directory
#
# Must stay true: standard output, standard error, exit code and the resulting tree (names, types,
# modes, sizes, link counts, link targets, contents) are compared byte for byte, at the same path on
# both media. A scenario that would need leniency is a bug of Cairn or of the scenario. It needs no
# network and no root; as root, a share of the scenarios also runs as an unprivileged user.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
list_only='' keep='' long='' only='*'
families=()
# shellcheck disable=SC2034 # families look at $long
while [ $# -gt 0 ]; do
    case $1 in
    --list) list_only=yes ;;
    --keep) keep=yes ;;
    --long) long=yes ;;
    --only) only=${2:?--only needs a pattern} && shift ;;
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    -*) echo "run.sh: unknown option '$1' (see --help)" >&2 && exit 2 ;;
    *) families+=("$1") ;;
    esac
    shift
done
if [ ${#families[@]} -eq 0 ]; then
    for file in "$here"/families/*.sh; do
        families+=("$(basename "$file" .sh)")
    done
fi

# shellcheck source=tests/apps/harness.sh
. "$here/harness.sh"
prepare
trap finish EXIT
for family in "${families[@]}"; do
    [ -f "$here/families/$family.sh" ] || {
        echo "run.sh: no family '$family' in $here/families" >&2
        exit 2
    }
    begin_family "$family"
    # shellcheck disable=SC1090
    . "$here/families/$family.sh"
done
[ -n "$list_only" ] || {
    echo
    check_that_differences_are_seen
    check_nothing_is_left
}
report
