"""What does not fit is refused before it is compiled, by the step and by the formulas in the same words."""

import ast
import contextlib
from dataclasses import fields, replace

import pytest

from strategies import PRESETS, STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from tests.strategies.equality import CONFIG
from tests.strategies.models import DROPPING, GPT_OSS, MOE_ROUTERS, SMALL, SMALL_LLAMA
from tests.strategies.refusals import assert_refused

# Model, batch size, and rows of: strategy and mesh | what is changed of model and options | a pattern of the message.
TABLE = (
    (
        PRESETS["nano"],
        16,
        """
        single data=2 |  | single runs on one device; its mesh is data=1, not data=2
        data data=8 | batch_size=12 | batch_size=12; batch_size can be 8 or 16; or the product can be 1
        data data=8 | microbatches=4 | data=8 x microbatches=4 does not divide batch_size=16
        fsdp fsdp=8 | embed=12 heads=4 | fsdp=8 does not divide embed=12; fsdp can be 1, 2 or 4$
        zero1 data=8 | embed=12 heads=4 | data=8 does not divide embed=12; data can be 1, 2 or 4$
        hsdp data=2,fsdp=4 | mlp=102 | fsdp=4 does not divide mlp=102; fsdp can be 1 or 2$
        hsdp data=2,fsdp=4 | batch_size=4 | data=2 x fsdp=4 x microbatches=1 does not divide batch_size=4
        fsdp fsdp=8 | batch_size=4 | fsdp=8 x microbatches=1 does not divide batch_size=4
        tensor tensor=8 | heads=4 | tensor=8 does not divide heads=4; tensor can be 1, 2 or 4
        tensor tensor=8 | mlp=100 | tensor=8 does not divide mlp=100; tensor can be 1, 2 or 4$
        tensor tensor=8 | sequence=20 | tensor=8 .* sequence=20; .* or tensor=8 with sequence_parallel
        pipeline pipeline=8 | layers=6 | 6 blocks are too few for 8 parts .*; pipeline can be 1, 2, 3
        pipeline pipeline=8 | schedule=interleaved microbatches=8 | 8 blocks are too few for 16 parts
        pipeline pipeline=4 | schedule=interleaved | pipeline=4 does not divide microbatches=1, which schedule
        three_d pipeline=4,tensor=2 | layers=2 | 2 blocks are too few for 4 parts
        three_d pipeline=4,tensor=2 | heads=1 | tensor=2 does not divide heads=1; tensor can be 1
        three_d data=4,tensor=2 | batch_size=6 | data=4 x microbatches=1 does not divide batch_size=6
        auto pipeline=2 |  | mesh pipeline=2 has the axis pipeline; it can be data, fsdp, expert, tensor
        auto fsdp=8 | embed=12 heads=4 | fsdp=8 does not divide embed=12; fsdp can be 1, 2 or 4$
        auto fsdp=2,tensor=4 | heads=2 | tensor=4 does not divide heads=2; tensor can be 1 or 2
        auto fsdp=4,tensor=2 | batch_size=6 | fsdp=4 x microbatches=1 does not divide batch_size=6
        explicit fsdp=4,tensor=2 | batch_size=6 | fsdp=4 x microbatches=1 does not divide batch_size=6
        explicit fsdp=2 | prefetch=on | prefetch=on changes nothing with the axes data, fsdp, expert, tensor; omit it
        explicit data=2 | unroll=2 | explicit has no rule for unroll=2 of 8 layers; use unroll=1 or unroll=8$
        fsdp fsdp=8 | optimizer=muon matrices=block | matrices=block changes nothing without tensor; use deal
        zero1 data=8 | optimizer=muon matrices=gather | devices update whole matrices; omit it
        data data=8 | optimizer=muon matrices=deal | matrices=deal changes nothing with the axis data; omit it
        explicit fsdp=8 | optimizer=muon matrices=deal | explicit gathers matrices, and .*matrices=deal; use gather
        explicit tensor=2 | optimizer=muon by_head=True | no rule for by_head=True over tensor=2; use tensor or three_d
        explicit data=2,tensor=2 | compression=int8 | compression=int8 changes nothing with the axes .*; omit it
        """,
    ),
    (
        replace(PRESETS["nano"], layers=4, embed=32, heads=4, sequence=16),
        16,
        """
        three_d fsdp=4,tensor=2 | embed=36 heads=2 | fsdp=4 does not divide embed/2=18; fsdp can be 1 or 2$
        three_d fsdp=4,tensor=2 | mlp=20 | fsdp=4 does not divide mlp/2=10; fsdp can be 1 or 2$
        three_d context=4,tensor=2 | context_attention=ulysses | context=4 does not divide .*context can be 1 or 2
        three_d pipeline=2,context=4 | heads=2 | context=4 does not divide heads=2; context can be 1 or 2
        three_d context=2,tensor=4 | sequence=12 context_attention=ulysses sequence_parallel=True | tensor=4 .*with seq
        three_d pipeline=2,context=2 | context_attention=ring | ring attention .*; use context_attention=ulysses
        three_d fsdp=2,pipeline=2 | regather=False | with regather=False pipeline=2 stages keep .* use regather=True
        three_d data=2,fsdp=4 | microbatches=4 | data=2 x fsdp=4 x microbatches=4 does not divide batch_size=16
        """,
    ),
    (
        GPTConfig(layers=2, embed=32, heads=8, vocab=128, sequence=64),
        4,
        """
        context context=8 | sequence=24 | 2 x context=8 chunks do not divide .*context can be 1, 2, 3, 4, 6 or 12
        context context=8 | sequence=63 | 2 x context=8 chunks do not divide sequence=63; context can be 1$
        context context=8 | sequence=20 context_attention=ulysses | context=8 does not .*context can be
        context context=8 | heads=4 context_attention=ulysses | context=8 does not divide .*context can be 1, 2 or 4
        context context=8 | attention=cudnn | attention=cudnn takes bfloat16 and .*GPUs, not float32 on cpu; use
        context context=8 | attention_stride=8 context_attention=ring | attention_stride=8 .*context_attention=uly
        context context=8 | sequence=60 attention_window=9 | context=8 does not divide .*context can be 1, 2, 3
        context context=8 | sequence=296 attention_window=36 | no blocks of useful size .*take a sequence with
        context context=8 | sequence=64 attention_window=9 full_attention_every=2 | attention_window=9 .*use context_a
        context context=8 | context_attention=star | context_attention='star'; it can be auto, ring, ulysses
        three_d context=8,tensor=2 | context_attention=ulysses | context=8 does not divide .*context can be 1, 2 or 4
        """,
    ),
    (
        DROPPING,
        16,
        """
        expert expert=16 |  | expert=16 does not divide experts=8; expert can be 1, 2, 4 or 8
        context context=4 | expert_group=None | groups of 16 tokens do not divide .*or 2, or omit capacity_factor
        zero1 data=3,expert=2 |  | data x expert=6 does not divide embed=32; mesh expert=2 fits
        tensor tensor=16 | heads=16 | tensor=16 does not divide expert_mlp=24
        tensor tensor=8 | dense_layers=1 mlp=36 | tensor=8 does not divide mlp=36
        pipeline pipeline=4 | layers=4 dense_layers=2 | 2 blocks are too few for 4 parts of a pipeline
        expert expert=2 | experts=258 dtype=bfloat16 dispatch=all_gather | dispatch=all_gather .*256, not experts=258
        expert expert=2 | experts=514 capacity_factor=None dtype=bfloat16 dispatch=all_to_all | dispatch.*=1 fits
        explicit expert=16 |  | expert=16 does not divide experts=8; expert can be 1, 2, 4 or 8
        explicit fsdp=2,tensor=2 |  | explicit does not split experts=8 over tensor; use auto or three_d
        explicit expert=2 | experts=258 dtype=bfloat16 dispatch=all_gather | dispatch=all_gather .*256, not experts=258
        explicit expert=2 | optimizer=muon | no rule for optimizer=muon where expert splits matrices; use expert or
        explicit expert=2 | halves=on | halves=on changes nothing with the axes data, fsdp, expert, tensor; omit it
        """,
    ),
    (
        SMALL,
        16,
        """
        data data=2 | reduce=layer microbatches=4 | would send gradients for each of microbatches=4
        data data=2 | reduce=layer compression=int8 | does not go with compression=int8
        hsdp data=2,fsdp=2 | reduce=layer gather=step | does not go with gather=step.* use gather=layer or reduce=step
        three_d data=2,pipeline=2 | reduce=layer microbatches=4 | no backward loop in a pipeline.* use reduce=step
        tensor tensor=2 | halves=on microbatches=16 | batch_size=16 / 16 = 1; use .*a larger batch or halves=off
        three_d context=2,tensor=2 | halves=on | does not go with a context axis.* use halves=off
        fsdp fsdp=2 | prefetch=on gather=step | does not go with gather=step.* prefetch=off
        fsdp fsdp=2 | prefetch=on regather=False | use regather=True or prefetch=off
        three_d fsdp=2,pipeline=2 | prefetch=on microbatches=4 | no loop over all layers in a pipeline
        pipeline pipeline=4 | microbatches=4 | 2 blocks are too few for 4 parts of a pipeline; pipeline can be 1 or 2$
        three_d pipeline=4 | microbatches=4 | 2 blocks are too few for 4 parts of a pipeline; pipeline can be 1 or 2$
        pipeline pipeline=2 | schedule=interleaved microbatches=2 | 2 blocks are too few for 4 parts of a pipeline
        three_d pipeline=2 | schedule=interleaved microbatches=2 | 2 blocks are too few for 4 parts of a pipeline
        pipeline pipeline=2 | schedule=interleaved chunks=1 | pipeline=2 does not divide .*microbatches can be 2, 4
        three_d pipeline=2 | schedule=interleaved chunks=1 | pipeline=2 does not divide .*microbatches can be 2, 4
        tensor tensor=8 |  | tensor=8 does not divide heads=4; tensor can be 1, 2 or 4
        pipeline pipeline=4 |  | 2 blocks are too few for 4 parts of a pipeline
        data data=32 |  | data=32 x microbatches=1 does not divide batch_size=16
        """,
    ),
    (
        GPTConfig(layers=1, embed=16, heads=6, head_size=5, vocab=64, sequence=16),
        8,
        """
        tensor tensor=4 |  | tensor=4 does not divide heads=6; tensor can be 1 or 2$
        fsdp fsdp=4 |  | fsdp=4 does not divide heads x head_size=30; fsdp can be 1 or 2$
        context context=4 | context_attention=ulysses | context=4 does not divide heads=6; context can be 1 or 2$
        """,
    ),
    (
        SMALL_LLAMA,
        16,
        """
        tensor tensor=6 | embed=48 heads=12 mlp=96 | tensor=6 neither divides .*of it; tensor can be 1, 2
        tensor tensor=8 | embed=48 heads=12 mlp=96 | tensor=8 does not divide heads=12; tensor can be 1, 2 or 4
        tensor tensor=8 | optimizer=muon | tensor=8 replicates key_heads=4, and .*; use by_head=True, or tensor=4
        explicit tensor=8 |  | explicit does not replicate key_heads=4 over tensor=8; tensor can be 1, 2 or 4$
        explicit fsdp=2,tensor=2 | block=olmoe | no rule for norms over all heads of block=olmoe; use auto or tensor
        single data=1 | block=lama | block='lama' does not exist; use one of gpt2, llama, qwen2, qwen3, olmoe, gpt_oss
        """,
    ),
    (
        GPT_OSS,
        4,
        """
        explicit data=2 |  | explicit has no rule for the attention sinks of block=gpt_oss; use auto or fsdp
        """,
    ),
    (
        MOE_ROUTERS[3],
        4,
        """
        data data=2 | compression=int8 | router_bias_rate=0.01 does not go with compression=int8; omit one of them
        data data=2 | bucket_bytes=4096 reduce_dtype=bfloat16 | router_bias_rate=0.01 .*which would round
        """,
    ),
    (
        CONFIG,
        16,
        """
        zero1 data=2 | dtype=float32 master=float32 | master=float32 changes nothing .*omit it, or use dtype=
        fsdp fsdp=2 | dtype=bfloat16 master=float32 | changes nothing where weights .*fsdp: the shards are float32
        hsdp data=2,fsdp=2 | dtype=bfloat16 master=float32 | changes nothing where weights are sharded over fsdp
        data data=2 | dtype=bfloat16 master=float32 | master=float32 needs devices .*shards .* use zero1 or zero2
        single data=1 | dtype=bfloat16 master=float32 | use zero1 or zero2
        tensor tensor=2 | dtype=float16 master=float32 | use zero1 or zero2
        pipeline pipeline=8 | layers=4 microbatches=8 | 4 blocks are too few for 8 .*pipeline; pipeline can be 1, 2
        single data=1 | vocab=4096 logits_bytes=2048 | logits_bytes=2048 is less than .*16384 bytes .*; use more
        expert expert=2 | dispatch=all_gather | dispatch=all_gather changes .*without experts; omit it
        expert expert=2 | halves=on | halves=on changes nothing in a model
        """,
    ),
)
MODEL_FIELDS = {field.name for field in fields(GPTConfig)}


def values(changes):
    """The fields in "name=value name=value"."""
    found = dict(change.split("=") for change in changes.split())
    for name, text in found.items():
        with contextlib.suppress(ValueError):  # it is a word
            found[name] = ast.literal_eval(text)
    return found


def cases():
    """A case for each row."""
    for config, batch_size, rows in TABLE:
        for row in rows.strip().splitlines():
            step, changes, message = row.strip().split(" | ")
            train = {"batch_size": batch_size, **values(changes)}
            model = {field: train.pop(field) for field in [*train] if field in MODEL_FIELDS}
            yield pytest.param(*step.split(), replace(config, **model), train, message, id=f"{step} {changes}")


@pytest.mark.parametrize(("name", "mesh", "config", "train", "message"), [*cases()])
def test_what_does_not_fit_is_refused(name, mesh, config, train, message):
    """With what is wrong, the value, and what is allowed or a way out."""
    if MeshSpec.parse(mesh).size <= 8:
        assert_refused(lambda: STRATEGIES[name].build(config, mesh, TrainConfig(**train)), message)
    if STRATEGIES[name].has_formulas and STRATEGIES[name].axes:  # `single` has no plan on a mesh
        assert_refused(lambda: predict(name, config, mesh, TrainConfig(**train), "cpu"), message)
