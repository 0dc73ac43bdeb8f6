"""Presets: published sizes of GPTs, and two small models for CPUs."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from strategies.config import GPTConfig
from strategies.names import Named

_GPT2 = GPTConfig(layers=12, embed=768, heads=12)
_GPT3 = dataclasses.replace(_GPT2, sequence=2048)

PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    Named(
        "preset",
        {
            "nano": GPTConfig(layers=8, embed=128, heads=8, vocab=256, sequence=64),
            "micro": GPTConfig(layers=8, embed=256, heads=8, vocab=2048, sequence=128, tied=False),
            # Radford et al. 2019, table 2, as released.
            "gpt2": _GPT2,
            "gpt2-medium": dataclasses.replace(_GPT2, layers=24, embed=1024, heads=16),
            "gpt2-large": dataclasses.replace(_GPT2, layers=36, embed=1280, heads=20),
            "gpt2-xl": dataclasses.replace(_GPT2, layers=48, embed=1600, heads=25),
            # Brown et al. 2020, table 2.1. 13b is printed there with 5140 wide, which 40 heads do not divide; and 1.3b
            # with 24 heads of 128, which is more than its width.
            "gpt3-125m": _GPT3,
            "gpt3-350m": dataclasses.replace(_GPT3, layers=24, embed=1024, heads=16),
            "gpt3-760m": dataclasses.replace(_GPT3, layers=24, embed=1536, heads=16),
            "gpt3-1.3b": dataclasses.replace(_GPT3, layers=24, embed=2048, heads=16),
            "gpt3-2.7b": dataclasses.replace(_GPT3, layers=32, embed=2560, heads=32),
            "gpt3-6.7b": dataclasses.replace(_GPT3, layers=32, embed=4096, heads=32),
            "gpt3-13b": dataclasses.replace(_GPT3, layers=40, embed=5120, heads=40),
            "gpt3-175b": dataclasses.replace(_GPT3, layers=96, embed=12288, heads=96),
        },
    )
)
"""Model sizes by name. `dataclasses.replace` varies them."""
