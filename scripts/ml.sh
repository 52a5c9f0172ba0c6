#!/usr/bin/env bash
# Training jobs on Cairn: the tests of the Python package with every framework, and tests/ml/run.py,
# which kills programs in the midst of their saves. Bits of their shards are flipped, too.
#
#   scripts/ml.sh [KILLS]    how many kills HF and DCP share (default: 200, half an hour)
#
# The binaries are in CAIRN_BIN, or else in target/release. First: scripts/setup.sh ml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=target/ml-venv/bin/python
[ -x "$python" ] || { echo "ml.sh: no $python: scripts/setup.sh ml" >&2; exit 2; }
CAIRN_BIN=$(readlink -f "${CAIRN_BIN:-target/release}")
export CAIRN_BIN
"$python" -m unittest discover -v -s python/tests -t python/tests
"$python" tests/ml/layouts.py
"$python" tests/ml/bitflips.py
"$python" tests/ml/run.py --kills "${1:-200}"
