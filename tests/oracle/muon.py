"""Golden files of `torch.optim.Muon` in float64: `python -m tests.oracle.muon` writes them; it needs torch.

Each matrix is a parameter of its own, transposed, because torch's linear maps have rows for outputs.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from strategies import TrainConfig
from strategies.core.matrices import has_matrices
from strategies.model.gpt import weight_specs
from tests.oracle.families import FAMILIES, FOLDER, STEPS, drawn, sketch

CONFIG = FAMILIES["dots1"]
"""It has dense layers, experts, a shared expert, and fewer KV heads than query heads."""
TRAIN = TrainConfig(2, optimizer="muon", learning_rate=1e-2, clip_norm=float("inf"), momentum=0.9)
VARIANTS: Mapping[str, TrainConfig] = {
    "rms": TRAIN,
    "original": replace(TRAIN, matrix_scale="original", nesterov=False),
    "heads": replace(TRAIN, by_head=True),
}
FILE = FOLDER / "muon.json"


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of all weights by name."""
    sizes = CONFIG.dim_sizes
    return {name: tuple(sizes[dim] for dim in spec.dims) for name, spec in weight_specs(CONFIG).items()}


def gradient(name: str, shape: tuple[int, ...], step: int) -> np.ndarray:
    """The gradient of a step, which decreases from step to step."""
    return drawn(f"{name} {step}", shape) / (1 + step)


def matrices(array: np.ndarray, name: str, *, by_head: bool) -> list[np.ndarray]:
    """Views of all matrices [in, out] of a weight."""
    if not name.endswith("qkv_DCA"):
        return [*array.reshape(-1, *array.shape[-2:])]
    found, queries, size = [], array.shape[-2] - 2, CONFIG.head_dim
    for layer_DCA in array:
        entries = [layer_DCA[:, i] for i in range(queries + 2)]
        if by_head:
            found += [entry[:, at : at + size] for entry in entries for at in range(0, entry.shape[1], size)]
        else:
            found += [np.concatenate(entries[:queries], 1), *entries[queries:]]
    return found


def golden(train: TrainConfig) -> dict[str, list[float]]:
    """A sketch of all matrices of each weight after the steps."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.Tensor.bfloat16 = torch.Tensor.clone  # torch orthogonalises in bfloat16, in a copy
    changed: dict[str, list[float]] = {}
    for name, shape in shapes().items():
        if not has_matrices(weight_specs(CONFIG)[name]):
            continue
        params = [
            torch.nn.Parameter(torch.from_numpy(w.T.copy()))
            for w in matrices(drawn(name, shape), name, by_head=train.by_head)
        ]
        optimizer: Any = torch.optim.Muon(
            params,
            train.learning_rate,
            train.weight_decay,
            train.momentum,
            train.nesterov,
            adjust_lr_fn="match_rms_adamw" if train.matrix_scale == "rms" else "original",
        )
        for step in range(STEPS):
            grads = matrices(gradient(name, shape, step), name, by_head=train.by_head)
            for param, grad in zip(params, grads, strict=True):
                param.grad = torch.from_numpy(grad.T.copy())
            optimizer.step()
        changed[name] = sketch(np.concatenate([param.detach().numpy().T.reshape(-1) for param in params]), name)
    return changed


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: golden(train) for name, train in VARIANTS.items()}, indent=1) + "\n")
    sys.exit()
