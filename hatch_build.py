"""Compiles the hot modules with mypyc, for the wheel of this platform.

Hatchling loads this file as its build hook when HATCH_BUILD_HOOK_ENABLE_CUSTOM is set, as `make wheel` does.
Without it the wheel is pure Python. Everything is compiled in a temporary copy: a checkout never has compiled
modules in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NOT_LAZY = "Treating generator comprehension as list"
"""A warning of mypyc. Work that is divided into turns relies on laziness, so the build fails on it."""
LARGEST_GROUP = "pyrite"
"""Name of the library with the code of all modules: `pyrite__mypyc`."""


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel, beside their sources, which PYRITE_PURE=1 selects."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless this is an editable install."""
        if version == "editable":
            return
        self.folder = TemporaryDirectory(prefix="pyrite-wheel-")
        copy = Path(self.folder.name)
        shutil.copytree(Path(self.root) / "src/pyrite", copy / "pyrite")
        chosen, left = ({f for p in self.config[key] for f in copy.glob(p)} for key in ("modules", "exclude"))
        modules = sorted(str(f.relative_to(copy)) for f in chosen - left if f.name != "__init__.py")
        build = [sys.executable, str(Path(__file__).resolve()), *modules]
        done = subprocess.run(  # noqa: S603
            build, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"mypyc failed:\n{done.stdout[-4000:]}")
        if eager := re.findall(rf".*{NOT_LAZY}.*", done.stdout):
            raise RuntimeError("write these as list comprehensions, or as loops:\n" + "\n".join(eager))
        for library in copy.rglob("*.so"):
            if "build" not in library.relative_to(copy).parts:
                build_data["force_include"][str(library)] = str(library.relative_to(copy))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        if version != "editable":
            self.folder.cleanup()


def compile_modules(modules: list[str]) -> None:
    """Compile these files of the working directory, on all cores."""
    from mypyc.build import mypycify
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        """Compiles the C files of an extension side by side."""

        def build_extension(self, extension: Extension) -> None:
            def compiled(source: str) -> str:
                objects: list[str] = self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    extra_postargs=extension.extra_compile_args,
                )
                return objects[0]

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(compiled, extension.sources))
            path = self.get_ext_fullpath(extension.name)
            self.compiler.link_shared_object(objects, path, extra_postargs=extension.extra_link_args)

    extensions = mypycify(
        ["--ignore-missing-imports", *modules],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=LARGEST_GROUP,
    )
    setup(
        name="pyrite",
        script_args=["build_ext", "--inplace"],
        ext_modules=extensions,
        packages=[],
        cmdclass={"build_ext": ParallelBuild},
    )


if __name__ == "__main__":
    compile_modules(sys.argv[1:])
