"""The compiled modules of the wheel; all else about the build is in pyproject.toml.

Each is an ordinary module with a `.pxd` beside it, translated by Cython. A machine without a compiler gets the plain
modules: the same results, about a hundred times slower. Wheels hold the compiled and the plain form, no C.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

CYTHON = ["predictor.kernel"]

extensions = cythonize(
    [
        Extension(
            name,
            [name.replace(".", "/") + ".py"],
            depends=[name.replace(".", "/") + ".pxd"],
            extra_compile_args=["-O3", "-g0"],
            extra_link_args=["-s"],
        )
        for name in CYTHON
    ],
    build_dir="build/cython",
    language_level=3,
)
for extension in extensions:
    extension.optional = True  # cythonize drops it from what it is given

setup(ext_modules=extensions)
