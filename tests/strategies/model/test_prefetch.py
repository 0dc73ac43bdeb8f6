"""Weights that are gathered one layer ahead: the same numbers, gathered in the iteration before."""

import jax
import pytest
from jax.extend.core import Var

from strategies import STRATEGIES, MeshSpec, TrainConfig
from tests.strategies.costs.steps import ODD, SMALL, cost
from tests.strategies.equality import ROUNDING, assert_equal, single, train

CASES = [
    ("fsdp", "fsdp=8", {}),
    ("fsdp", "fsdp=4", {"remat": "full", "unroll": 2, "tied": False}),
    ("fsdp", "fsdp=2", {"remat": "none", "microbatches": 2}),
    ("fsdp", "fsdp=4", {"dtype": "bfloat16"}),
    ("hsdp", "data=2,fsdp=4", {"remat": "full", "reduce": "layer"}),
    ("three_d", "data=2,fsdp=2,tensor=2", {"reduce": "layer"}),
    ("three_d", "fsdp=2,context=2,tensor=2", {"remat": "full"}),
]


@pytest.mark.parametrize(("name", "mesh", "options"), CASES, ids=str)
def test_prefetch_equals_one_device(name, mesh, options):
    """A step that gathers weights one layer ahead computes what one device computes."""
    reference = single(**{key: options[key] for key in options if key in ("dtype", "tied")})
    mine = train(name, MeshSpec.parse(mesh), prefetch="on", **options)
    assert_equal(mine, reference, ROUNDING[options.get("dtype", "float32")])


def bodies(program):
    """The bodies of all loops of a program."""
    for equation in program.eqns:
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield from [part] if equation.primitive.name == "scan" else bodies(part)


def follow(program, gathered):
    """Follow gathered weights through a program, also into the functions that it calls.

    Args:
        program: without loops.
        gathered: for each input, whether it is one.

    Returns:
        For each output, whether it depends on one; and how many gathers and how many matmuls of them there are.
    """
    known, gathers, matmuls = dict(zip(program.invars, gathered, strict=True)), 0, 0
    for equation in program.eqns:
        name, inputs = equation.primitive.name, [isinstance(x, Var) and known.get(x, False) for x in equation.invars]
        part = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        outputs = [any(inputs) or name == "all_gather"] * len(equation.outvars)
        if part is not None:
            outputs, more, deeper = follow(getattr(part, "jaxpr", part), inputs)
            gathers, matmuls = gathers + more, matmuls + deeper
        gathers += name == "all_gather"
        matmuls += name == "dot_general" and any(inputs)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [isinstance(x, Var) and known.get(x, False) for x in program.outvars], gathers, matmuls


@pytest.mark.parametrize("prefetch", ["on", "off"])
def test_an_iteration_multiplies_by_what_the_iteration_before_gathered(prefetch):
    """With prefetch=on no matmul of a loop takes what the same iteration gathers. Otherwise some do.

    Both loops gather: the forward and the backward one, whose recomputation needs the weights again.
    """
    built = STRATEGIES["fsdp"].build(SMALL, "fsdp=8", TrainConfig(16, remat="full", prefetch=prefetch))
    program = jax.make_jaxpr(built.gradients)(built.state, built.batch)
    found = [follow(body, [False] * len(body.invars))[1:] for body in bodies(program.jaxpr)]
    assert len(found) == 2
    for gathers, matmuls in found:
        assert gathers > 0
        assert (matmuls == 0) == (prefetch == "on")


@pytest.mark.parametrize("remat", ["none", "full"])
def test_the_last_layer_is_gathered_once(remat):
    """The formula of gathers again counts one layer less."""
    on, off = (cost("fsdp", "fsdp=8", ODD, remat=remat, prefetch=prefetch) for prefetch in ("on", "off"))
    again = ("all_gather", ("fsdp",))
    less = off.sent[again]["weights again"] - on.sent[again]["weights again"]
    assert less * ODD.layers == off.sent[again]["weights again"] > 0
    assert on.sent[again]["weights"] == off.sent[again]["weights"]
