"""Builds the native extension `metasd_kernels._C` with CMake and Ninja; everything else is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).parent.resolve()


def find_tool(name: str) -> str:
    """Path of a build tool: from PATH (a build environment puts its own there), else beside this interpreter."""
    path = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if path is None:
        raise CompileError(f"metasd needs {name} to build metasd_kernels._C, and found none; run: pip install {name}")
    return path


class CMakeBuild(build_ext):
    """Builds an extension by its CMake target, in a folder of its own that is kept: a rebuild compiles what changed."""

    def build_extension(self, ext: Extension) -> None:
        output_dir = Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        build_dir = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        # The tools' paths are given each time: build environments are temporary, and CMake would remember the last one.
        definitions = {
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": output_dir,
            "CMAKE_MAKE_PROGRAM": find_tool("ninja"),
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        arguments = [f"-D{name}={value}" for name, value in definitions.items()]
        cmake = find_tool("cmake")
        self.run_step("configure", [cmake, "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja", *arguments])
        self.run_step("build", [cmake, "--build", str(build_dir)])

    @staticmethod
    def run_step(step: str, command: list[str]) -> None:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        sys.stdout.write(result.stdout)
        if result.returncode != 0:
            raise CompileError(
                f"building metasd_kernels._C failed in CMake's {step} step (exit code {result.returncode}).\n"
                f"A C++20 compiler is needed (gcc 10, clang 12 or newer; CXX={os.environ.get('CXX', 'not set')}).\n"
                f"The compiler's messages are above. Command: {' '.join(command)}"
            )


# CMakeLists.txt lists the sources; `depends` takes them into the source archive.
NATIVE_FILES = ["CMakeLists.txt", *sorted(f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir())]

setup(
    ext_modules=[Extension("metasd_kernels._C", sources=[], depends=NATIVE_FILES)],
    cmdclass={"build_ext": CMakeBuild},
)
