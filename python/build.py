#!/usr/bin/env python3
"""Builds the wheel of the Python package `cairn-ckpt` into dist/.

    python/build.py [--binaries DIR] [--dist DIR]

DIR has `cairn` and `libcairn_preload.so` (default: CAIRN_BIN, else target/release). The wheel holds
them stripped, with `libcairn.so` and `cairn.h`, in the layout of an installation, so the program
finds its libraries. Only the standard library and binutils are used: nothing is fetched, and the
same input gives the same bytes. python/build-old-glibc.sh makes binaries for older systems.

Must stay true: the platform tag names the oldest glibc that has every symbol version which the
binaries need, and no library is needed that such a system lacks. The library starts before others,
whatever linked it. The wheel has at most 10 MB.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME, FILE_NAME = "cairn-ckpt", "cairn_ckpt"
BYTES_MAX = 10_000_000
# What PEP 600 lets a wheel take from the system, of what we could need.
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# The oldest date that a zip archive can hold; all members have it.
DATE = (1980, 1, 1, 0, 0, 0)

METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Checkpoints at the speed of memory, for unchanged programs
License: Apache-2.0 OR MIT
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: System :: Archiving :: Backup
Classifier: Typing :: Typed
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == 'torch'
Provides-Extra: fsspec
Requires-Dist: fsspec>=2023.1; extra == 'fsspec'
Description-Content-Type: text/markdown

{description}"""

ENTRY_POINTS = """[console_scripts]
cairn = _cairn_start:main

[fsspec.specs]
cairn = cairn.fsspec:CairnFileSystem
"""


class Unfit(Exception):
    """The binaries cannot be in a wheel; the message says why."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("CAIRN_BIN", ROOT / "target/release")
    parser.add_argument("--binaries", metavar="DIR", type=Path, default=Path(default))
    parser.add_argument("--dist", metavar="DIR", type=Path, default=HERE / "dist")
    chosen = parser.parse_args()
    try:
        wheel = build(chosen.binaries, chosen.dist)
    except (Unfit, OSError, subprocess.CalledProcessError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


def build(binaries, dist):
    """Writes the wheel and returns its path. Errors: Unfit, OSError, CalledProcessError."""
    version = version_of(HERE / "cairn/__init__.py")
    with tempfile.TemporaryDirectory() as scratch:
        program, library = (stripped(binaries / name, Path(scratch)) for name in ("cairn", "libcairn_preload.so"))
        start_first(library)
        tag = platform_tag([program, library])
        runtime = {
            "bin/cairn": program, "lib/libcairn_preload.so": library, "lib/libcairn.so": library,
            "include/cairn.h": ROOT / "include/cairn.h",
        }
        members = {f"cairn/_runtime/{place}": source.read_bytes() for place, source in runtime.items()}
        executable = {"cairn/_runtime/bin/cairn", "cairn/_runtime/lib/libcairn_preload.so", "cairn/_runtime/lib/libcairn.so"}
        for source in sorted((HERE / "cairn").iterdir()):
            if source.suffix in {".py", ".typed"} or source.name == "py.typed":
                members[f"cairn/{source.name}"] = source.read_bytes()
        members["_cairn_start.py"] = (HERE / "_cairn_start.py").read_bytes()
    information = f"{FILE_NAME}-{version}.dist-info"
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        members[f"{information}/licenses/{licence}"] = (ROOT / licence).read_bytes()
    description = (HERE / "README.md").read_text()
    members[f"{information}/METADATA"] = METADATA.format(name=NAME, version=version, description=description).encode()
    members[f"{information}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: cairn\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode())
    members[f"{information}/entry_points.txt"] = ENTRY_POINTS.encode()
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in members.items())
    members[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()

    dist.mkdir(parents=True, exist_ok=True)
    wheel = dist / f"{FILE_NAME}-{version}-py3-none-{tag}.whl"
    unfinished = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, DATE)
            member.external_attr = (0o100755 if name in executable else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    size = unfinished.stat().st_size
    if size > BYTES_MAX:
        raise Unfit(f"the wheel has {size} bytes; at most {BYTES_MAX} are allowed")
    unfinished.rename(wheel)
    return wheel


def version_of(module):
    return re.search(r'^__version__ = "(.+)"$', module.read_text(), re.MULTILINE).group(1)


def stripped(binary, scratch):
    if not binary.exists():
        raise Unfit(f"no {binary}: make build")
    copy = scratch / binary.name
    shutil.copy(binary, copy)
    subprocess.run(["strip", "--strip-all", copy], check=True)
    return copy


def start_first(library):
    """Sets DF_1_INITFIRST of a 64-bit library, as the linker does for `-z initfirst`. Errors: Unfit."""
    segment_dynamic, tag_flags_1, initfirst = 2, 0x6FFFFFFB, 0x20
    image = bytearray(library.read_bytes())
    (table,), (entry_bytes, entries) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<HH", image, 54)
    for number in range(entries):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, table + number * entry_bytes)
        for place in range(offset, offset + size, 16) if kind == segment_dynamic else ():
            tag, flags = struct.unpack_from("<QQ", image, place)
            if tag == tag_flags_1:
                struct.pack_into("<Q", image, place + 8, flags | initfirst)
                library.write_bytes(image)
                return
    raise Unfit(f"{library.name} has no entry for the flags of its start")


def platform_tag(binaries):
    """Returns the tag for the glibc that these need. Errors: Unfit, if they need another library."""
    machine = platform.machine()
    floors = []
    for binary in binaries:
        dynamic = subprocess.run(["objdump", "-p", "-T", binary], capture_output=True, text=True, check=True).stdout
        foreign = set(re.findall(r"^\s*NEEDED\s+(\S+)", dynamic, re.MULTILINE)) - LIBRARIES
        if foreign:
            raise Unfit(f"{binary.name} needs {', '.join(sorted(foreign))}, which a wheel may not take from the system")
        symbols = re.findall(r"\(?GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?", dynamic)
        floors.append(max((int(major), int(minor)) for major, minor in symbols))
    major, minor = max(floors)
    return f"manylinux_{major}_{minor}_{machine}"


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
