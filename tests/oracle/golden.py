"""Golden files by Hugging Face transformers: `python -m tests.oracle.golden` writes them, `--check` compares instead.

It needs torch and transformers (the extra `oracle`).
"""

import argparse
import copy
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

from strategies import GPTConfig
from strategies.huggingface import read, safetensors, tensors
from strategies.huggingface.config_json import facts_of
from strategies.huggingface.folder import CONFIG, FILE
from tests.oracle.families import (
    FAMILIES,
    FOLDER,
    STEPS,
    TOLERANCE,
    TRAIN,
    batch_of,
    difference,
    drawn,
    layouts_of,
    named,
    sketch,
    stored,
)


def model_of(config: GPTConfig, folder: Path) -> Any:
    """The model in float64, as transformers loads it from a folder that is written here, with weights by `drawn`."""
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(facts_of(config, "float32")[1]))
    there = safetensors.created(folder / FILE, tensors.shapes(layouts_of(config)), "float32")
    for name, tensor in there.items():
        tensor[...] = drawn(name, tensor.shape)
    kinds = {"attn_implementation": "eager"} | ({"experts_implementation": "eager"} if config.experts else {})
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **kinds).eval()


def weights_of(model: Any, of: Callable[[Any], Any], folder: Path) -> dict[str, np.ndarray]:
    """Its weights, or what `of` gives for each, as transformers writes them into a folder that is read here."""
    saved = copy.deepcopy(model)
    with torch.no_grad():
        for param, own in zip(saved.parameters(), model.parameters(), strict=True):
            param.copy_(of(own))
    saved.float().save_pretrained(folder)
    pretrained = read(folder)
    return named(stored(pretrained.config, pretrained.tensors))


def balance_loss(model: Any, result: Any, config: GPTConfig) -> Any:
    """The load-balancing loss of transformers, one layer at a time, as in "Switch Transformer".

    transformers computes it of the choices and probabilities of all layers together, and its shares of choices sum to
    k.
    """
    loss = importlib.import_module(type(model).__module__).load_balancing_loss_func
    layers = (loss((logits,), config.experts, config.experts_per_token) for logits in result.router_logits)
    return config.balance_loss * sum(layers) / config.experts_per_token


def golden(config: GPTConfig, folder: Path) -> dict[str, Any]:
    """Logits, losses, norms, clipped gradients of the first step, and weights after three steps of AdamW."""
    model = model_of(config, folder / "ours")
    betas = TRAIN.beta1, TRAIN.beta2
    optimizer = torch.optim.AdamW(
        model.parameters(), TRAIN.learning_rate, betas, TRAIN.epsilon, weight_decay=TRAIN.weight_decay
    )

    def sketches(name: str, of: Callable[[Any], Any]) -> dict[str, list[float]]:
        return {name: sketch(array, name) for name, array in weights_of(model, of, folder / name).items()}

    facts: dict[str, Any] = {"loss": [], "balance_loss": [], "grad_norm": []}
    for step in range(STEPS):
        tokens = torch.from_numpy(batch_of(step)).long()
        routed = {"output_router_logits": True} if config.balance_loss else {}
        result = model(input_ids=tokens[:, :-1], use_cache=False, **routed)
        loss = torch.nn.functional.cross_entropy(result.logits.flatten(0, 1), tokens[:, 1:].flatten())
        balance = balance_loss(model, result, config) if config.balance_loss else torch.zeros(())
        optimizer.zero_grad()
        (loss + balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN.clip_norm)
        if step == 0:
            facts["logits"] = {"logits": sketch(result.logits.detach().numpy(), "logits")}
            gradients = sketches("gradients", lambda param: param.grad)
            facts["gradients"] = {name: each for name, each in gradients.items() if "router_bias" not in name}
        optimizer.step()
        facts["loss"].append(loss.item())
        facts["balance_loss"].append(balance.item())
        facts["grad_norm"].append(norm.item())
    facts["weights"] = sketches("weights", lambda param: param)
    return facts


def main() -> int:
    """Write the golden files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the files with what this version of torch computes"
    )
    parser.add_argument("families", nargs="*", default=[*FAMILIES], help="default: all")
    given = parser.parse_args()
    check, worst = given.check, 0.0
    for family in given.families:
        path, config = FOLDER / f"{family}.json", FAMILIES[family]
        with tempfile.TemporaryDirectory() as folder:
            facts = golden(config, Path(folder))
        if check:
            there = json.loads(path.read_text())
            parts = (difference(facts[part], there[part]) for part in ("logits", "gradients", "weights"))
            steps = (
                abs(a - b) / max(abs(b), 1e-30)
                for name in ("loss", "balance_loss", "grad_norm")
                for a, b in zip(facts[name], there[name], strict=True)
            )
            worst = max(worst, *(max(part.values()) for part in parts), *steps)
        else:
            path.write_text(json.dumps(facts, indent=1) + "\n")
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}: {len(given.families)} families", end=" "
    )
    print(f"compared; the largest difference is {worst:.1e}" if check else f"written to {FOLDER}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
