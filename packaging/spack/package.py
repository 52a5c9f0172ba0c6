# Copyright Spack Project Developers and Cairn developers.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack.package import *


class Cairn(MakefilePackage):
    """Checkpoints at the speed of memory, for unchanged programs: a storage runtime for the time of
    a job, which drains complete checkpoints to a directory."""

    # There is no archive to fetch. Build from a checkout, in a Spack repository that has this recipe:
    #   spack develop --path $PWD cairn@0.1.0 && spack install cairn@0.1.0

    license("Apache-2.0 OR MIT")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("gmake", type="build")
    depends_on("binutils", type="build")

    # The library intercepts calls of glibc.
    requires("platform=linux")

    def build(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--release", "--locked", "-p", "cairn-preload", "-p", "cairn-cli")
        Executable("scripts/linked-libraries.sh")("target/release")

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")

    def test_serves(self):
        """serves a file below its prefix"""
        cairn = which(self.prefix.bin.cairn, required=True)
        cairn("check", "--self")
