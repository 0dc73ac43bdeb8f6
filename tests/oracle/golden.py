"""Golden files by Hugging Face transformers: `python -m tests.oracle.golden` writes them, `--check` compares instead.

It needs torch and transformers (the extra `oracle`).
"""

import argparse
import json
import sys
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

from strategies import GPTConfig
from tests.oracle.families import (
    FAMILIES,
    FOLDER,
    STEPS,
    TOLERANCE,
    TRAIN,
    difference,
    drawn,
    named,
    sketch,
    stored,
    tokens,
)

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
}
SCALED = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def model_of(family: str, config: GPTConfig) -> Any:
    """The model in float64, with the weights that `drawn` gives."""
    scaling = {**SCALED, "factor": config.rope_factor} if config.rope_factor > 1 else {"rope_type": "default"}
    of_family = {"sliding_window": config.attention_window} if family == "mistral" else {}
    kind, model_kind = CLASSES[family]
    model = model_kind(
        kind(
            hidden_size=config.embed,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_heads,
            head_dim=config.head_dim,
            intermediate_size=config.mlp_dim,
            vocab_size=config.vocab,
            max_position_embeddings=16_384,
            rms_norm_eps=config.norm_epsilon,
            rope_parameters={**scaling, "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="eager",
            **of_family,
        )
    ).double()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.from_numpy(drawn(name, tuple(param.shape))))
    return model


def golden(family: str, config: GPTConfig) -> dict[str, Any]:
    """Logits, losses, norms, clipped gradients of the first step, and weights after three steps of AdamW."""
    model = model_of(family, config)
    betas = TRAIN.beta1, TRAIN.beta2
    optimizer = torch.optim.AdamW(
        model.parameters(), TRAIN.learning_rate, betas, TRAIN.epsilon, weight_decay=TRAIN.weight_decay
    )

    def arrays(of: Any) -> dict[str, np.ndarray]:
        params = {name: of(param).detach().numpy() for name, param in model.named_parameters()}
        return named(stored(config, params))

    facts: dict[str, Any] = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = torch.from_numpy(tokens(step)).long()
        result = model(input_ids=batch, labels=batch)
        optimizer.zero_grad()
        result.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN.clip_norm)
        if step == 0:
            facts["logits"] = {"logits": sketch(result.logits[:, :-1].detach().numpy(), "logits")}
            facts["gradients"] = {name: sketch(array, name) for name, array in arrays(lambda p: p.grad).items()}
        optimizer.step()
        facts["loss"].append(result.loss.item())
        facts["grad_norm"].append(norm.item())
    facts["weights"] = {name: sketch(array, name) for name, array in arrays(lambda p: p).items()}
    return facts


def main() -> int:
    """Write the golden files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the files with what this version of torch computes"
    )
    check, worst = parser.parse_args().check, 0.0
    for family, config in FAMILIES.items():
        facts, path = golden(family, config), FOLDER / f"{family}.json"
        if check:
            there = json.loads(path.read_text())
            parts = (difference(facts[part], there[part]) for part in ("logits", "gradients", "weights"))
            steps = (
                abs(a - b) / abs(b)
                for name in ("loss", "grad_norm")
                for a, b in zip(facts[name], there[name], strict=True)
            )
            worst = max(worst, *(max(part.values()) for part in parts), *steps)
        else:
            path.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {len(FAMILIES)} families", end=" ")
    print(f"compared; the largest difference is {worst:.1e}" if check else f"written to {FOLDER}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
