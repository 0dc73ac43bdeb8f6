"""Hugging Face folders (config.json and safetensors): read into the state of any step, written from a checkpoint.

    family.py         what a family of models is
    families.py       families: their fields and tensors
    config_json.py    config.json <-> `GPTConfig`
    tensors.py        which tensors of a folder hold which weights, and their layout
    safetensors.py    files of tensors, mapped into memory
    folder.py         `read` a folder, `write` one

It needs neither torch nor transformers.
"""

from strategies.huggingface.config_json import HuggingFaceError, differences
from strategies.huggingface.folder import METADATA, Pretrained, read, write

__all__ = ["METADATA", "HuggingFaceError", "Pretrained", "differences", "read", "write"]
