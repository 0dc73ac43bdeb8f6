"""What a strategy sends in place of the layout's sum of gradients is stated by a term of its own."""

import jax
from jax import lax

from benchmarks.program.compiled import read_program
from strategies import Implementation, Layout, MeshSpec, Strategy, TrainConfig
from strategies.core.plan import Plan
from strategies.core.traffic import traffic
from strategies.core.train_step import assemble
from strategies.costs.predict import predict_layout, terms
from tests.strategies import quick
from tests.strategies.costs.steps import BATCH, SMALL, by_axes, sent

AXES = ("data", "fsdp")  # hosts, and devices of a host
LAYOUT = Layout(batch=AXES)


def sum_replicas(loss, grads):
    """Reduce-scatter inside a host, all-reduce between hosts, all-gather inside a host."""

    def summed(grad):
        part = lax.psum_scatter(grad.reshape(-1), "fsdp", tiled=True)
        return lax.all_gather(lax.psum(part, "data"), "fsdp", tiled=True, to="invarying").reshape(grad.shape)

    return lax.psum(loss, AXES), jax.tree.map(summed, grads)


def sums(plan: Plan):
    """The term of `sum_replicas`."""
    yield from traffic(plan, "loss", "all_reduce", AXES, 1)
    for weight in plan.weights:
        part = weight.elements // plan.size("fsdp")
        yield from traffic(plan, "gradients", "reduce_scatter", ("fsdp",), weight.elements)
        yield from traffic(plan, "gradients", "all_reduce", ("data",), part)
        yield from traffic(plan, "gradients", "all_gather", ("fsdp",), part)


def build(config, mesh, train, devices=None):
    """Build the step."""
    return assemble(config, mesh.over(AXES, devices), train, LAYOUT, Implementation(sum_replicas=sum_replicas))


def test_a_term_replaces_the_sum_over_replicas():
    """Hierarchical data parallelism sends what its own term says, and nothing that the layout alone would say."""
    strategy = Strategy("hierarchical", AXES, build, layout=LAYOUT, replica_sums=sums)
    mesh, train = MeshSpec.parse("data=2,fsdp=4"), TrainConfig(BATCH)
    step = strategy.build(SMALL, mesh, train, jax.devices()[:8])
    text = quick.compiled(step.lower()).as_text()
    assert text
    compiled = sent(read_program(text, step.mesh.shape))
    assert compiled == by_axes(predict_layout(LAYOUT, SMALL, mesh, train, terms=terms(strategy)))
    assert compiled != by_axes(predict_layout(LAYOUT, SMALL, mesh, train))
