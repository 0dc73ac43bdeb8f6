"""Compiled programs of the tests: fast ones, shared by all tests of a process, and ones as they are used.

Results, matmuls and what is sent do not depend on how XLA emits loops as machine code, for which tests/conftest.py
chooses the faster way. It fuses differently, so instructions differ, and temporaries a little; test_laws.py compares
programs compiled either way with the formulas.
"""

import os
from collections import OrderedDict

import jax

from tests.processes import OLDER_EMITTERS

KEPT = 32
"""The number of compiled programs that are kept for later tests.

XLA's CPU backend maps each function of a program into memory of its own: a step takes 300 mappings with JAX 0.10, and
600 with 0.12. Linux gives a process 65,530 (vm.max_map_count). With none left, compiling ends in a segmentation fault.
"""
_programs: OrderedDict[str, jax.stages.Compiled] = OrderedDict()


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The compiled program, shared by all steps with the same lowered text, as most options have the same `init`.

    The least recently used programs are dropped, and compiled again if needed.
    """
    text = lowered.as_text()
    if text not in _programs:
        _programs[text] = lowered.compile()
    _programs.move_to_end(text)
    if len(_programs) > KEPT:
        _programs.popitem(last=False)
    return _programs[text]


def as_used(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The program with the loops that XLA emits by default."""
    name = OLDER_EMITTERS.strip("-").partition("=")[0]
    return lowered.compile({name: True} if OLDER_EMITTERS in os.environ["XLA_FLAGS"] else None)
