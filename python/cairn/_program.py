"""Finds and starts the program `cairn`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import List, NoReturn, Optional

RUNTIME = Path(__file__).resolve().parent / "_runtime"


def find() -> Optional[str]:
    """Returns the path of the program: that of this package, else the one in PATH; None if there is none."""
    ours = RUNTIME / "bin" / "cairn"
    return str(ours) if ours.exists() else shutil.which("cairn")


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Becomes the program `cairn` with these arguments, or with those of this process."""
    words = sys.argv[1:] if arguments is None else arguments
    program = RUNTIME / "bin" / "cairn"
    try:
        os.execv(program, ["cairn", *words])
    except OSError as error:
        # A C library that is too old shows as a message of the dynamic linker, not here.
        print(f"cairn: cannot start {program}: {error.strerror}", file=sys.stderr)
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main()
