"""What a strategy sends in place of the default sum of gradients is stated by a term of its own."""

from functools import partial

import jax
from jax import lax

from benchmarks.program.compiled import read_program
from strategies import Axis, MeshSpec, Strategy, TrainConfig
from strategies.core.gradients import sum_remaining
from strategies.core.plan import Plan
from strategies.core.traffic import traffic
from strategies.costs.predict import predict_axes
from strategies.step import Implementation
from tests.strategies import quick
from tests.strategies.equality import BATCH
from tests.strategies.formulas import by_axes, sent
from tests.strategies.models import SMALL


def sum_replicas(grads):
    """Reduce-scatter inside a host, all-reduce between hosts, all-gather inside a host."""

    def summed(grad):
        part = lax.psum_scatter(grad.reshape(-1), "fsdp", tiled=True)
        return lax.all_gather(lax.psum(part, "data"), "fsdp", tiled=True, to="invarying").reshape(grad.shape)

    return jax.tree.map(summed, grads)


def sums(plan: Plan):
    """The term of `sum_replicas`."""
    for weight in plan.weights.values():
        part = weight.elements // plan.size("fsdp")
        yield from traffic(plan, "gradients", "reduce_scatter", ("fsdp",), weight.elements)
        yield from traffic(plan, "gradients", "all_reduce", ("data",), part)
        yield from traffic(plan, "gradients", "all_gather", ("fsdp",), part)


def hierarchical(plan):
    """The sums of gradients along the devices of a host and, between, of hosts."""
    return Implementation(reduce=partial(sum_remaining, plan=plan, sum_replicas=sum_replicas))


HOSTS = Axis("data", batch=True)
DEVICES = Axis("fsdp", batch=True, implement=hierarchical, replica_sums=sums)


def test_a_term_replaces_the_sum_over_replicas():
    """Hierarchical data parallelism sends what its own term says, and nothing that its placement alone would say."""
    strategy = Strategy("hierarchical", (HOSTS, DEVICES))
    mesh, train = MeshSpec.parse("data=2,fsdp=4"), TrainConfig(BATCH)
    step = strategy.build(SMALL, mesh, train)
    text = quick.compiled(step.lower()).as_text()
    assert text
    compiled = sent(read_program(text, step.mesh.shape))
    assert compiled == by_axes(predict_axes(strategy.axes, SMALL, mesh, train))
    assert compiled != by_axes(predict_axes((HOSTS, Axis("fsdp", batch=True)), SMALL, mesh, train))
