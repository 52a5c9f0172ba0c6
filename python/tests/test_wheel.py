"""The wheel: what is in it, and that it takes a minute from `pip install` to a drained checkpoint.

Needs optimised binaries (CAIRN_BIN or target/release), because others are too large for a wheel.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path

import harness  # Puts the package into the path.

import build

SIZE_MAX = 10_000_000
BAR_S = 60


def optimised():
    found = harness.binaries()
    return found if found and found.name != "debug" else None


@unittest.skipUnless(optimised(), "no optimised binaries: make build, or name their directory in CAIRN_BIN")
@unittest.skipUnless(shutil.which("objdump") and shutil.which("strip"), "no binutils")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = Path(tempfile.mkdtemp(prefix="cairn-wheel."))
        cls.addClassCleanup(shutil.rmtree, cls.box, ignore_errors=True)
        build = [sys.executable, harness.PACKAGE / "build.py", "--binaries", optimised(), "--dist"]
        subprocess.run([*build, cls.box / "dist"], check=True, capture_output=True)
        subprocess.run([*build, cls.box / "again"], check=True, capture_output=True)
        cls.wheel, = (cls.box / "dist").glob("*.whl")

    def test_same_input_gives_the_same_bytes(self):
        self.assertEqual(self.wheel.read_bytes(), (self.box / "again" / self.wheel.name).read_bytes())

    def test_size_is_below_its_limit(self):
        self.assertLessEqual(self.wheel.stat().st_size, SIZE_MAX)

    def test_tag_is_the_newest_glibc_that_a_binary_needs(self):
        needed = set()
        for name in ("cairn", "libcairn_preload.so"):
            said = subprocess.run(["objdump", "-T", optimised() / name], capture_output=True, text=True, check=True)
            needed |= {tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", said.stdout)}
        major, minor = max(needed)
        self.assertIn(f"-py3-none-manylinux_{major}_{minor}_{os.uname().machine}.whl", self.wheel.name)

    def test_library_starts_first_whatever_linked_it(self):
        library = self.box / "library.so"
        shutil.copy(optimised() / "libcairn_preload.so", library)
        flags = lambda: subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        self.assertIn("INITFIRST", flags())
        image, mark = library.read_bytes(), struct.pack("<QQ", 0x6FFFFFFB, 0x21)  # NOW and INITFIRST.
        self.assertEqual(image.count(mark), 1)
        library.write_bytes(image.replace(mark, struct.pack("<QQ", 0x6FFFFFFB, 1)))
        self.assertNotIn("INITFIRST", flags())
        build.start_first(library)
        self.assertEqual(library.read_bytes(), image)

    def test_record_names_every_member(self):
        with zipfile.ZipFile(self.wheel) as archive:
            record, = (name for name in archive.namelist() if name.endswith("/RECORD"))
            listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
            self.assertEqual(listed, archive.namelist())
            sources = {f"cairn/{path.name}" for path in (harness.PACKAGE / "cairn").glob("*.py")}
            self.assertLessEqual(sources, set(listed))

    def test_first_checkpoint_is_outside_within_a_minute(self):
        begun = time.monotonic()
        place = self.box / "environment"
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CAIRN", "PYTHON", "LD_"))}
        environment["CAIRN_STORE_ROOT"] = str(self.box)
        run = {"env": environment, "cwd": self.box, "check": True, "capture_output": True, "text": True,
               "timeout": harness.LIMIT_S}
        subprocess.run([place / "bin/pip", "install", "--no-index", "--quiet", self.wheel], **run)
        code = """if True:
            import cairn
            with cairn.checkpoint(1):
                with open("/cairn/step1.pt", "wb") as out:
                    out.write(b"x" * 1_000_000)
            assert cairn.wait_safe(1, timeout=60)
            """
        words = [place / "bin/cairn", "run", "--persist", "results", "--", place / "bin/python", "-c", code]
        subprocess.run(words, **run)
        self.assertEqual((self.box / "results/step1.pt").read_bytes(), b"x" * 1_000_000)
        took_s = time.monotonic() - begun
        print(f"from an empty environment to a drained checkpoint: {took_s:.1f} s", file=sys.stderr)
        self.assertLess(took_s, BAR_S)

        module = subprocess.run([place / "bin/python", "-m", "cairn", "--version"], **run).stdout
        self.assertRegex(module, r"^cairn \d+\.\d+\.\d+")
        if shutil.which("cc"):
            self.compile_with(place, run)

    def compile_with(self, place, run):
        """Compiles a C program with the header and the library of the package."""
        (self.box / "a.c").write_text("#include <cairn.h>\nint main(void) { return cairn_version() == 0; }\n")
        said = subprocess.run([place / "bin/cairn", "config", "--cflags", "--libs"], **run).stdout
        subprocess.run(["cc", "-o", "a", "a.c", *said.split()], **run)
        subprocess.run([self.box / "a"], **run)


if __name__ == "__main__":
    unittest.main()
