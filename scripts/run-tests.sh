#!/usr/bin/env bash
# Everything that has to hold before a change lands: formatting, lints, documentation, the workspace's
# tests, unmodified programs on a Cairn store (tests/apps), and what arrives outside (tests/delivery).
#
# What must stay true: it stops after the first step that fails, so the end of its output says why; one
# cargo profile, so nothing is compiled twice; no step needs root.
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
# Most tests wait most of the time, for other processes: so several of a binary, and several
# binaries, at the same time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"
export CAIRN_BIN=target/debug
step scripts/run-all-tests.py "tests/delivery/run.py --small --jobs $(nproc)" tests/apps/run.sh
