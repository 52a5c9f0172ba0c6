"""Becomes the program `cairn`. Outside the package, so that starting it does not import that."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "cairn", "_runtime", "bin", "cairn")


def main() -> None:
    """Replaces this process; its arguments are those of the program."""
    try:
        os.execv(PROGRAM, ["cairn", *sys.argv[1:]])
    except OSError as error:
        sys.stderr.write(f"cairn: cannot start {PROGRAM}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)
