#!/usr/bin/env python3
"""Builds the workspace's test programs and runs them, two at a time, then its documentation's examples.

Most tests wait most of the time, for other processes, and many programs have few tests: one after the
other they leave half of the processors idle. What a program says is printed in one piece when it has
ended. Options are passed on to each program.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

AT_A_TIME = 2
BUILD = ["cargo", "test", "--workspace", "--locked", "--no-run",
         "--message-format=json-render-diagnostics"]
EXAMPLES = ["cargo", "test", "--workspace", "--locked", "--doc"]


def programs():
    """(name, directory of the package, program) of each."""
    built = subprocess.run(BUILD, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"]:
            package = Path(message["manifest_path"]).parent
            name = f"{package.name} {message['target']['name']}"
            found.append((name, package, message["executable"]))
    # Those of the command wait longest.
    return sorted(found, key=lambda one: (one[1].name != "cairn-cli", one[0]))


def run(program):
    _, package, executable = program
    begun = time.monotonic()
    done = subprocess.run([executable, *sys.argv[1:]], cwd=package, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
                          env={**os.environ, "CARGO_MANIFEST_DIR": str(package)})
    return done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - begun


def main():
    passed, failed = 0, []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        running = {pool.submit(run, program): program[0] for program in programs()}
        for done in as_completed(running):
            code, said, seconds = done.result()
            print(f"\n== {running[done]}, {seconds:.0f} s\n{said.strip()}", flush=True)
            passed += sum(line.endswith("... ok") for line in said.splitlines())
            if code:
                failed.append(running[done])
    examples = subprocess.run(EXAMPLES, check=False).returncode
    print(f"\n{passed} tests passed" + "".join(f"\nFAILED: {name}" for name in failed), flush=True)
    return 1 if failed or examples else 0


if __name__ == "__main__":
    sys.exit(main())
