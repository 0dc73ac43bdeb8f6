"""Golden files by Hugging Face transformers: `python -m tests.oracle.golden` writes them, `--check` compares instead.

It needs torch and transformers (the extra `oracle`).
"""

import argparse
import importlib
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
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3-moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
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
    of_family: dict[str, Any] = {"sliding_window": config.attention_window} if family == "mistral" else {}
    hidden = config.dim_sizes["expert_mlp"]
    if config.experts:
        number = "num_local_experts" if family == "mixtral" else "num_experts"
        of_family |= {number: config.experts, "num_experts_per_tok": config.experts_per_token}
        of_family |= {"output_router_logits": True, "experts_implementation": "eager"}
    if family == "qwen3-moe":
        of_family |= {"moe_intermediate_size": hidden, "norm_topk_prob": True}
    kind, model_kind = CLASSES[family]
    model = model_kind(
        kind(
            hidden_size=config.embed,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_heads,
            head_dim=config.head_dim,
            intermediate_size=hidden,
            vocab_size=config.vocab,
            max_position_embeddings=16_384,
            rms_norm_eps=config.norm_epsilon,
            rope_parameters={**scaling, "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            eos_token_id=None,
            pad_token_id=None,  # OLMoE's embedding of it would have no gradient
            use_cache=False,
            attn_implementation="eager",
            **of_family,
        )
    ).double()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.from_numpy(drawn(name, tuple(param.shape))))
    return model


def balance_loss(model: Any, result: Any, config: GPTConfig) -> Any:
    """The load-balancing loss of transformers, one layer at a time, as in "Switch Transformer".

    transformers computes it of the choices and probabilities of all layers together, and its shares of choices sum to
    k. The last token is no input of ours, so it is masked.
    """
    loss = importlib.import_module(type(model).__module__).load_balancing_loss_func
    inputs = torch.ones(TRAIN.batch_size, config.sequence + 1)
    inputs[:, -1] = 0
    layers = (loss((logits,), config.experts, config.experts_per_token, inputs) for logits in result.router_logits)
    return config.balance_loss * sum(layers) / config.experts_per_token


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

    shapes = {name: "x".join(map(str, param.shape)) for name, param in model.named_parameters()}
    facts: dict[str, Any] = {"shapes": shapes, "loss": [], "balance_loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = torch.from_numpy(tokens(step)).long()
        result = model(input_ids=batch)
        loss = model.loss_function(result.logits, batch, config.vocab)
        balance = balance_loss(model, result, config) if config.experts else torch.zeros(())
        optimizer.zero_grad()
        (loss + balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN.clip_norm)
        if step == 0:
            facts["logits"] = {"logits": sketch(result.logits[:, :-1].detach().numpy(), "logits")}
            facts["gradients"] = {name: sketch(array, name) for name, array in arrays(lambda p: p.grad).items()}
        optimizer.step()
        facts["loss"].append(loss.item())
        facts["balance_loss"].append(balance.item())
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
                abs(a - b) / max(abs(b), 1e-30)
                for name in ("loss", "balance_loss", "grad_norm")
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
