"""Programs that are soon compiled: for laws on numbers, on matmuls and on what is sent.

These hold whoever writes the loops in machine code; test_predict.py holds both kinds of programs to the same formulas.
"""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Iterator

import jax
import pytest


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    """The options, or none where this version of XLA has them no more."""
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


# XLA's older emitter of loops is done in a third of the time. Passes that fuse differ with it: instructions are others,
# and temporaries a little.
OPTIONS = _known({"xla_cpu_use_fusion_emitters": False})
KEPT = 32
"""Programs that are kept for tests to come.

XLA's CPU backend maps each function of a program into memory of its own: a step takes 300 mappings with JAX 0.10, and
600 with 0.12. Linux gives a process 65,530 (vm.max_map_count). With none left, compiling ends in a segmentation fault.
"""
_programs: OrderedDict[str, jax.stages.Compiled] = OrderedDict()

jit = functools.partial(jax.jit, compiler_options=OPTIONS)


@contextlib.contextmanager
def programs() -> Iterator[None]:
    """Steps that are built meanwhile are soon compiled when they are called, but may not be called in another jit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", jit)
        yield


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The program, compiled once for all steps whose lowered text is the same: most options leave `init` alone.

    Those that were asked for longest ago are given up, and compiled again if need be.
    """
    text = lowered.as_text()
    if text not in _programs:
        _programs[text] = lowered.compile(OPTIONS)
    _programs.move_to_end(text)
    if len(_programs) > KEPT:
        _programs.popitem(last=False)
    return _programs[text]
