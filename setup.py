"""The compiled modules of the wheel; all else about the build is in pyproject.toml.

`predictor.kernel` and `predictor.walk` are translated by Cython, with a `.pxd` beside each; the request's hot path by mypyc,
from its own annotations. All stay ordinary modules: a machine without a compiler gets them as they are, with the same
results, the kernel about a hundred times slower, a request about a third dearer. `gateway.relay.straight`, a few lines of
Cython around one system call, has no plain form; without it transports write. An editable install compiles what is Cython's
alone, so that an edit of the others takes effect at once. Wheels hold the compiled and the plain form, no C.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CYTHON = ["gateway/relay/straight.pyx", "predictor/kernel.py", "predictor/walk.py"]
MYPYC = [
    "gateway.access_line",
    "gateway.accounts",
    "gateway.admission",
    "gateway.answer",
    "gateway.api",
    "gateway.auth",
    "gateway.books",
    "gateway.deadlines",
    "gateway.desk",
    "gateway.desks",
    "gateway.dispatch",
    "gateway.door",
    "gateway.engines",
    "gateway.fitting",
    "gateway.fleet",
    "gateway.foresight",
    "gateway.forward",
    "gateway.handicap",
    "gateway.hindsight",
    "gateway.intake",
    "gateway.jobs",
    "gateway.lanes",
    "gateway.line",
    "gateway.metrics",
    "gateway.own_pages",
    "gateway.patience",
    "gateway.placement",
    "gateway.plan",
    "gateway.policies.base",
    "gateway.policies.counts",
    "gateway.policies.ladder",
    "gateway.policies.peers",
    "gateway.policies.reported",
    "gateway.policies.table",
    "gateway.pools",
    "gateway.probe_line",
    "gateway.probing",
    "gateway.promises",
    "gateway.prompt",
    "gateway.prospects",
    "gateway.records",
    "gateway.relay.downstream",
    "gateway.relay.heads",
    "gateway.relay.http1",
    "gateway.relay.idle",
    "gateway.relay.memo",
    "gateway.relay.outlet",
    "gateway.relay.pool",
    "gateway.relay.requests",
    "gateway.relay.responses",
    "gateway.relay.splice",
    "gateway.relay.sse",
    "gateway.relay.upstream",
    "gateway.replica",
    "gateway.server",
    "gateway.signals",
    "gateway.slo",
    "gateway.spending",
    "gateway.suspicion",
    "gateway.tag_rules",
    "gateway.tagging",
    "gateway.tenants",
    "gateway.turns",
    "gateway.underway",
    "gateway.views",
    "predictor.budget",
    "predictor.memory",
    "predictor.mirror",
    "predictor.moore_hodgson",
    "predictor.ordered",
    "predictor.pace",
    "predictor.peak",
    "predictor.picture",
    "predictor.prefill",
    "predictor.prefix",
    "predictor.queues",
    "predictor.rest",
    "predictor.seats",
    "predictor.step_budget",
    "predictor.share",
    "predictor.spread",
    "predictor.stepclock",
    "predictor.trees",
    "predictor.waiting",
]


# What is done where something is raised, in mypyc's words: a quarter of the code that it writes. Told that it is rarely run,
# the compiler puts it aside, and what a request does run lies together: few pages and cache lines, since caches have gone
# cold where requests are some milliseconds apart.
RARE = """
#include <CPy.h>
#define RARE __attribute__((cold))
RARE void CPy_AddTraceback(const char *file, const char *name, int line, PyObject *globals);
RARE void CPy_TypeErrorTraceback(const char *, const char *, int, PyObject *, const char *expected, PyObject *value);
RARE void CPy_TypeError(const char *expected, PyObject *value);
RARE void CPyError_OutOfMemory(void);
RARE void CPy_Raise(PyObject *error);
RARE PyAPI_FUNC(void) PyErr_SetString(PyObject *type, const char *text);
RARE PyAPI_FUNC(PyObject *) PyErr_Format(PyObject *type, const char *format, ...);
"""


def source(module: str) -> str:
    """The file of a module."""
    return module.replace(".", "/") + ".py"


def kernels() -> list[Extension]:
    """What Cython translates."""
    built = cythonize(
        [
            Extension(
                path.rpartition(".")[0].replace("/", "."),
                [path],
                depends=[path.replace(".py", ".pxd")] if path.endswith(".py") else [],
                extra_compile_args=["-O3", "-g0"],
                extra_link_args=["-s"],
            )
            for path in CYTHON
        ],
        build_dir="build/cython",
        language_level=3,
    )
    return list(built)


def hot_path() -> list[Extension]:
    """What mypyc translates; the modules know each other's classes, so they are one group."""
    from mypyc.build import mypycify  # takes as long as mypy itself: only where it is asked for

    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--python-version=3.11"]
    built = mypycify([*options, *map(source, MYPYC)], opt_level="2", debug_level="0", group_name="leeway")
    header = Path("build/rare.h").resolve()
    header.write_text(RARE)
    for extension in built:
        extension.extra_link_args.append("-s")
        if os.name == "posix" and any(Path(path, "CPy.h").exists() for path in extension.include_dirs):
            # a list of its own: mypyc gives all of them one
            extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden", "-include", str(header)]
    return list(built)


extensions = kernels() + (hot_path() if "bdist_wheel" in sys.argv else [])
for extension in extensions:
    extension.optional = True  # cythonize drops it from what it is given

setup(ext_modules=extensions)
