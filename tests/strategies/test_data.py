"""Buckets of gradients: their number is limited."""

import re

import pytest

from strategies import PRESETS, STRATEGIES, Infeasible, TrainConfig


@pytest.mark.parametrize("options", [{}, {"reduce": "layer"}, {"reduce_dtype": "bfloat16"}], ids=str)
def test_too_many_buckets_are_refused_with_the_smallest_that_are_not(options):
    """Buckets that would make thousands of all-reduces are refused before anything is compiled, with the way out."""

    def build(bucket_bytes):
        train = TrainConfig(8, bucket_bytes=bucket_bytes, **options)
        return STRATEGIES["data"].build(PRESETS["nano"], "data=8", train)

    with pytest.raises(Infeasible, match=r"bucket_bytes=64 makes [0-9,]{6,} buckets") as refused:
        build(64)
    least = int(re.findall(r"at least bucket_bytes=([0-9]+)", str(refused.value))[0])
    build(least)
    with pytest.raises(Infeasible, match=f"take at least bucket_bytes={least}, for 1,000 or fewer"):
        build(least - 1)
