"""Fast compilation, for tests of results, of matmuls and of what is sent.

These do not depend on how XLA emits loops as machine code; test_predict.py compares programs compiled either way with
the formulas.
"""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Iterator

import jax
import pytest


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    """The options, or none where this version of XLA no longer has them."""
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


# XLA's older loop emitter takes a third of the time. It fuses differently, so instructions differ, and temporaries a
# little.
OPTIONS = _known({"xla_cpu_use_fusion_emitters": False})
KEPT = 32
"""The number of compiled programs that are kept for later tests.

XLA's CPU backend maps each function of a program into memory of its own: a step takes 300 mappings with JAX 0.10, and
600 with 0.12. Linux gives a process 65,530 (vm.max_map_count). With none left, compiling ends in a segmentation fault.
"""
_programs: OrderedDict[str, jax.stages.Compiled] = OrderedDict()

jit = functools.partial(jax.jit, compiler_options=OPTIONS)


@contextlib.contextmanager
def programs() -> Iterator[None]:
    """Compile steps that are built in this context fast; they cannot be called inside another jit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", jit)
        yield


@contextlib.contextmanager
def ahead_of_time() -> Iterator[None]:
    """Compile fast in this context what is lowered first and then compiled, as the benchmarks do."""
    compile_lowered = jax.stages.Lowered.compile

    def compile_fast(lowered: jax.stages.Lowered, compiler_options: dict | None = None) -> jax.stages.Compiled:
        return compile_lowered(lowered, OPTIONS | dict(compiler_options or {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", compile_fast)
        yield


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The compiled program, shared by all steps with the same lowered text, as most options have the same `init`.

    The least recently used programs are dropped, and compiled again if needed.
    """
    text = lowered.as_text()
    if text not in _programs:
        _programs[text] = lowered.compile(OPTIONS)
    _programs.move_to_end(text)
    if len(_programs) > KEPT:
        _programs.popitem(last=False)
    return _programs[text]
