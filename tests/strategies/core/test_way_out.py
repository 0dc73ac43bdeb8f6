"""An error message about a size offers sizes with which everything fits, and not only what it complains of."""

import pickle
import random
import re
from dataclasses import replace

import jax
import pytest

from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.core.plan import Plan
from strategies.core.way_out import way_out
from strategies.infeasible import WrongSize
from tests.strategies.sampling import nightly

OPTIONS = {
    "context_attention": ("ulysses",),
    "sequence_parallel": (False,),
    "schedule": ("gpipe", "zb-h1"),
    "gather": ("step",),
    "dispatch": ("all_gather", "all_to_all"),
}
"""Options that every model, mesh and batch can have."""


def drawn(draw):
    """A strategy, a model, a mesh and a batch, few of which fit together."""
    strategy = STRATEGIES[draw.choice([name for name in STRATEGIES if name != "single"])]
    combinations = [*strategy.twins] or [[axis for axis in strategy.axis_names if draw.random() < 0.5]]
    axes = draw.choice(combinations) or strategy.axis_names[:1]
    mesh = MeshSpec(tuple((axis, draw.choice((2, 3, 4, 6, 8))) for axis in axes))
    heads = draw.choice((1, 2, 3, 4, 6, 8, 12))
    config = GPTConfig(
        layers=draw.choice((1, 2, 3, 4, 8)),
        embed=heads * draw.choice((4, 6, 8, 10)),
        heads=heads,
        vocab=97,
        sequence=draw.choice((12, 16, 24, 36, 64)),
        mlp=draw.choice((None, 20, 36, 48, 100)),
        head_size=draw.choice((None, 4, 8, 10)),
        key_heads=draw.choice([None, *(keys for keys in range(1, heads + 1) if heads % keys == 0)]),
        attention_window=draw.choice((None, None, 2, 9)),
    )
    if draw.random() < 0.4:
        factor, experts = draw.choice((None, 1.25)), draw.choice((4, 6, 8, 9))
        config = replace(config, experts=experts, expert_mlp=draw.choice((None, 12, 18)), capacity_factor=factor)
    batch_size = draw.choice((8, 12, 16, 24, 48))
    microbatches = draw.choice([parts for parts in (1, 2, 4, 6, 8) if batch_size % parts == 0])
    options = {name: draw.choice(values) for name, values in OPTIONS.items() if name in strategy.options}
    given = {name: value for name, value in options.items() if draw.random() < 0.3}
    return strategy, config, mesh, TrainConfig(batch_size, microbatches, **given)


def ways_out(text, config, mesh, train):
    """All models, meshes and batches that a message offers first."""
    if found := re.search(r"; mesh (\S+) fits", text):
        return [(config, MeshSpec.parse(found[1]), train)]
    found = re.search(r"; (\w+) can be ([0-9, or.]*[0-9])", text)
    assert found, text
    name, sizes = found[1], [int(size) for size in re.findall("[0-9]+", found[2])]
    if name in mesh.sizes:
        meshes = [MeshSpec(tuple((axis, size if axis == name else own) for axis, own in mesh.axes)) for size in sizes]
        return [(config, each, train) for each in meshes]
    if name == "batch_size":
        return [(config, mesh, replace(train, batch_size=size)) for size in sizes]
    return [(replace(config, **{name: size}), mesh, train) for size in sizes]


@pytest.mark.parametrize(("seed", "count"), [(0, 150), *nightly(*((seed, 300) for seed in range(1, 6)))])
def test_the_first_way_out_works(seed, count):
    """Every size that a message offers makes a plan, whatever else divides what; some are built."""
    draw, refused = random.Random(seed), []
    while len(refused) < count:
        strategy, config, mesh, train = drawn(draw)
        try:
            Plan.of(strategy.axes, config, mesh, train)
        except WrongSize as error:
            refused.append(str(error))
            offered = ways_out(refused[-1], config, mesh, train)
            for chosen in offered:
                Plan.of(strategy.axes, *chosen)
            if len(refused) % 25 == 0 and offered[0][1].size <= 8:
                strategy.build(*offered[0], jax.devices()[: offered[0][1].size])
        except Infeasible:
            continue
    assert {text.partition("=")[0] for text in refused} >= {"tensor", "fsdp", "context", "expert"}
    assert any(" fits" in text for text in refused)


def test_a_size_that_solves_one_problem_of_two_is_not_offered():
    """Of the sizes that divide the heads, only those that divide the hidden features and the tokens, too."""
    config, train = GPTConfig(layers=2, embed=24, heads=6, mlp=32, sequence=16), TrainConfig(8)
    for mesh, message in (
        ("tensor=4", "tensor=4 does not divide heads=6; tensor can be 1 or 2$"),
        ("data=2,tensor=4", "tensor=4 does not divide heads=6; tensor can be 1 or 2$"),
        ("data=3,tensor=4", "tensor=4 does not divide heads=6; mesh tensor=2 fits$"),
    ):
        with pytest.raises(Infeasible, match=message):
            Plan.of(STRATEGIES["three_d"].axes, config, MeshSpec.parse(mesh), train)


def test_the_smallest_of_many_meshes_are_tried():
    """Of 1,024 smaller meshes only one of two devices fits, and that of one device."""
    config = GPTConfig(layers=3, embed=6, heads=1, vocab=97, sequence=16, experts=4)
    mesh = MeshSpec.parse("data=8,fsdp=6,pipeline=8,context=6,expert=6")
    train = TrainConfig(batch_size=3, microbatches=3, context_attention="ulysses")
    with pytest.raises(Infeasible, match=r"expert=6 does not divide experts=4; mesh pipeline=2 fits$"):
        Plan.of(STRATEGIES["three_d"].axes, config, mesh, train)


def test_a_list_that_does_not_suffice_says_so():
    """If no size and no smaller mesh fits, the message says that its sizes are not all that must change."""

    def refuse(*_):
        raise Infeasible("something else")

    error, config = (
        WrongSize("tensor=4 does not divide heads=6", "tensor", (1, 2)),
        GPTConfig(layers=2, embed=24, heads=6),
    )
    found = way_out(error, config, MeshSpec.parse("tensor=4"), TrainConfig(8), refuse)
    assert found == "tensor can be 1 or 2, but something else must change, too"


def test_an_error_goes_to_another_process():
    """Its message does, too."""
    error = pickle.loads(pickle.dumps(WrongSize("tensor=4 does not divide heads=6", "tensor", (1, 2))))
    assert (type(error), str(error)) == (Infeasible, "tensor=4 does not divide heads=6; tensor can be 1 or 2")
