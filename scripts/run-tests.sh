#!/usr/bin/env bash
# Everything that must hold before a change lands: formatting, lints, documentation, the workspace's
# tests, unmodified programs on a Cairn store (tests/apps), drained files (tests/delivery), and the
# Python package (python/tests).
#
# Must stay true: it stops after the first step that fails, so the end of its output says why. It
# uses one cargo profile, so nothing is compiled twice. No step needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

scripts/setup.sh build test
step cargo fmt --all --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings"
step cargo doc --workspace --no-deps --document-private-items --locked
# Most tests mostly wait for other processes, so several tests of a binary, and several binaries,
# run at once.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"
export CAIRN_BIN=target/debug
step scripts/run-all-tests.py "tests/delivery/run.py --small --jobs $(nproc)" tests/apps/run.sh \
    '/usr/bin/python3 -m unittest discover -v -s python/tests -t python/tests'
