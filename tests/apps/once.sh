#!/usr/bin/env bash
# One run of one scenario, the same on both media: once.sh RESULTS bash|python SCRIPT ARGUMENT…
#
# Leaves stdout, stderr and tree in RESULTS (outside the medium) and exits with the script's code. M
# is the medium's root, D the scenario's directory on it, and B holds the compiled programs.
results=$1 language=$2 script=$3
shift 3
case $language in
bash) interpreter=(bash) ;;
python) interpreter=(/usr/bin/python3 -B) ;;
esac
export D=$M/work
umask 022
mkdir "$D" || exit 125
cd "$results/../cwd" || exit 125
"${interpreter[@]}" "$script" "$@" >"$results/stdout" 2>"$results/stderr"
code=$?

# Sizes and link counts of directories differ between file systems; everything else is printed.
cd "$D" || exit 125
{
    find . -type d -printf '%p %y %m\n'
    find . ! -type d -printf '%p %y %m %s bytes %n links %U:%G -> %l\n'
    find . -type f -exec sha256sum {} +
} | LC_ALL=C sort >"$results/tree.part" && mv "$results/tree.part" "$results/tree"
exit $code
