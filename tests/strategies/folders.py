"""Small folders of Hugging Face, with weights that are drawn by name."""

import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np

from strategies import GPTConfig
from strategies.huggingface import folder as module
from strategies.huggingface import read, safetensors, tensors
from strategies.huggingface.config_json import facts_of
from tests.oracle.families import FAMILIES

LLAMA = GPTConfig(
    layers=2, embed=16, heads=4, key_heads=2, vocab=31, sequence=8, mlp=24, tied=False, block="llama", rope_factor=8.0
)
CONFIGS = {
    "llama": LLAMA,
    "mixtral": dataclasses.replace(LLAMA, rope_factor=1.0, attention_window=4, mlp=None, experts=4, expert_mlp=24),
    "dots1": dataclasses.replace(
        FAMILIES["dots1"], embed=16, layers=4, dense_layers=2, head_size=4, sequence=8, router_bias_rate=0.01
    ),
    "deepseek-v3": dataclasses.replace(
        FAMILIES["deepseek-v3"], embed=16, sequence=8, mlp=24, router_bias_rate=0.01, mtp_loss=0.1
    ),
    "deepseek-v2": dataclasses.replace(FAMILIES["deepseek-v2"], embed=16, sequence=8, mlp=24, experts=4),
    "gpt-oss": dataclasses.replace(
        FAMILIES["gpt-oss"], layers=6, embed=16, full_attention_every=3, head_size=4, sequence=8, experts=4
    ),
    "gpt2": GPTConfig(layers=2, embed=16, heads=4, vocab=31, sequence=8),
}


def folder_of(path: Path, config: GPTConfig, dtype: str) -> Path:
    """A folder with weights of a model, drawn by the names of its tensors."""
    family, facts = facts_of(config, dtype)
    path.mkdir()
    (path / module.CONFIG).write_text(json.dumps(facts))
    there = safetensors.created(path / module.FILE, tensors.shapes(tensors.layouts(config, family)), dtype)
    for name, tensor in there.items():
        tensor[...] = np.random.default_rng(zlib.crc32(name.encode())).normal(size=tensor.shape)
    return path


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All tensors of a folder."""
    return {name: tensor.tobytes() for name, tensor in read(folder).tensors.items()}


def rewrite(folder, there):
    """Replace the tensors of a folder."""
    (folder / module.FILE).unlink()
    shapes = {name: tensor.shape for name, tensor in there.items()}
    for name, tensor in safetensors.created(folder / module.FILE, shapes, "float32").items():
        tensor[...] = there[name]
