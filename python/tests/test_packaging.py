"""The recipes in packaging/: they parse, and name what there is."""

import ast
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness

SPACK = harness.ROOT / "packaging/spack/package.py"
APPTAINER = harness.ROOT / "packaging/apptainer/cairn.def"
DEB = harness.ROOT / "packaging/deb/build.sh"


class Spack(unittest.TestCase):
    def setUp(self):
        module = ast.parse(SPACK.read_text())
        self.recipe, = (one for one in module.body if isinstance(one, ast.ClassDef))
        self.calls = [one.value for one in self.recipe.body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]

    def arguments(self, name):
        return [call.args[0].value for call in self.calls if call.func.id == name]

    def test_recipe_is_a_package_with_its_steps(self):
        self.assertEqual((self.recipe.name, self.recipe.bases[0].id), ("Cairn", "MakefilePackage"))
        self.assertTrue(ast.get_docstring(self.recipe))
        self.assertLessEqual({"build", "install"}, {one.name for one in self.recipe.body if isinstance(one, ast.FunctionDef)})

    def test_version_and_rust_are_those_of_the_workspace(self):
        manifest = (harness.ROOT / "Cargo.toml").read_text()
        self.assertEqual(self.arguments("version"), re.findall(r'^version = "(.+)"', manifest, re.MULTILINE))
        rust = re.search(r'^rust-version = "(.+)"', manifest, re.MULTILINE).group(1)
        self.assertIn(f"rust@{rust}:", self.arguments("depends_on"))

    def test_packages_that_are_built_are_those_of_make_build(self):
        makefile = (harness.ROOT / "Makefile").read_text()
        line = re.search(r"^\t\$\(CARGO\) (build --release --locked -p .*)$", makefile, re.MULTILINE).group(1)
        words = re.search(r"cargo\((.*)\)", SPACK.read_text()).group(1)
        self.assertEqual(re.findall(r'"(.*?)"', words), line.split())


class Apptainer(unittest.TestCase):
    def test_definition_has_a_header_and_its_sections(self):
        header, *sections = re.split(r"^%", APPTAINER.read_text(), flags=re.MULTILINE)
        keys = dict(re.findall(r"^(\w+): (\S+)$", header, re.MULTILINE))
        self.assertEqual(keys["Bootstrap"], "docker")
        # The wheel needs glibc 2.34; the image of the definition has 2.36.
        self.assertEqual(keys["From"], "debian:bookworm-slim")
        names = [section.split(None, 1)[0] for section in sections]
        self.assertEqual(sorted(names), sorted(set(names)))
        self.assertLessEqual({"files", "post", "environment", "test", "runscript"}, set(names))
        for section in sections:
            for line in section.splitlines()[1:]:
                self.assertTrue(not line or line.startswith("    "), line)

    def test_wheel_is_where_the_build_puts_it(self):
        self.assertIn("python/dist/*.whl", APPTAINER.read_text())
        self.assertIn('default=HERE / "dist"', (harness.PACKAGE / "build.py").read_text())


@unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is not installed")
class Deb(unittest.TestCase):
    def test_package_holds_what_was_installed_under_its_version(self):
        with tempfile.TemporaryDirectory() as box:
            program = Path(box, "tree/usr/bin/cairn")
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\necho cairn 1.2.3\n")
            program.chmod(0o755)
            pages = Path(box, "tree/usr/share/man/man1")
            pages.mkdir(parents=True)
            (pages / "cairn.1").write_text("a page")
            subprocess.run([DEB, "--from", Path(box, "tree"), Path(box, "out")], check=True, capture_output=True)
            package, = Path(box, "out").glob("cairn_1.2.3_*.deb")

            def told(*words):
                return subprocess.run(["dpkg-deb", *words], check=True, capture_output=True, text=True).stdout

            self.assertEqual(told("--field", package, "Version"), "1.2.3\n")
            names = [line.split(None, 5) for line in told("--contents", package).splitlines()]
            files = {name[5]: name[1] for name in names if not name[5].endswith("/")}
            self.assertEqual(set(files), {f"./usr/{name}" for name in (
                "bin/cairn", "share/doc/cairn/copyright", "share/man/man1/cairn.1.gz")})
            self.assertEqual(set(files.values()), {"root/root"})


class Version(unittest.TestCase):
    def test_package_has_the_version_of_the_workspace(self):
        import cairn
        manifest = (harness.ROOT / "Cargo.toml").read_text()
        self.assertIn(cairn.__version__, re.findall(r'^version = "(.+)"', manifest, re.MULTILINE))
