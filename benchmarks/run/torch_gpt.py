"""The same GPT-2 in PyTorch, compiled by `torch.compile`, for a comparison in the same minutes. It needs torch.

autocast to bfloat16, scaled_dot_product_attention, fused AdamW and clipped gradients, as nanoGPT trains.
"""

import time
from typing import Any

import numpy as np

from strategies import GPTConfig, TrainConfig


class TorchTraining:
    """A training run in PyTorch, as `measure.Timeable`, on random tokens."""

    dispatch_seconds = 0.0

    def __init__(self, config: GPTConfig, train: TrainConfig) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        self.torch, self.train = torch, train
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.model = _gpt(torch, config).to(self.device)
        self.losses = torch.compile(self.model)
        rates: dict[str, Any] = {"lr": train.learning_rate, "betas": (train.beta1, train.beta2), "eps": train.epsilon}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), **rates, weight_decay=train.weight_decay, fused=self.device == "cuda"
        )
        tokens_BS = np.random.default_rng(0).integers(0, 256, (train.batch_size, config.sequence + 1))
        self.tokens_BS = torch.from_numpy(tokens_BS).to(self.device)

    def block(self, steps: int) -> float:
        """Run some consecutive steps and return their seconds."""
        start = time.perf_counter()
        for _ in range(steps):
            with self.torch.autocast(self.device, self.torch.bfloat16):
                loss = self.losses(self.tokens_BS)
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - start


def _gpt(torch: Any, config: GPTConfig) -> Any:
    """The model: tokens [B,S] -> the mean loss. Queries, keys and values are one linear map."""
    nn, functional = torch.nn, torch.nn.functional
    embed, rows = config.embed, -(-config.vocab // config.vocab_multiple) * config.vocab_multiple

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(embed), nn.LayerNorm(embed)
            self.qkv, self.out = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
            self.up, self.down = nn.Linear(embed, config.mlp_dim), nn.Linear(config.mlp_dim, embed)

        def forward(self, x_BTD: Any) -> Any:
            shape = (*x_BTD.shape[:2], config.heads, config.head_dim)
            qkv = (each.view(shape).transpose(1, 2) for each in self.qkv(self.norm1(x_BTD)).split(embed, 2))
            mixed_BHTK = functional.scaled_dot_product_attention(*qkv, is_causal=True)
            x_BTD = x_BTD + self.out(mixed_BHTK.transpose(1, 2).reshape(x_BTD.shape))
            return x_BTD + self.down(functional.gelu(self.up(self.norm2(x_BTD)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(rows, embed), nn.Embedding(config.sequence, embed)
            self.blocks = nn.ModuleList(Block() for _ in range(config.layers))
            self.norm = nn.LayerNorm(embed)
            for weight in self.parameters():
                if weight.ndim > 1:
                    nn.init.normal_(weight, std=0.02)

        def forward(self, tokens_BS: Any) -> Any:
            x_BTD = self.tokens(tokens_BS[:, :-1]) + self.positions.weight
            for block in self.blocks:
                x_BTD = block(x_BTD)
            logits_BTV = self.norm(x_BTD) @ self.tokens.weight.T
            return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BS[:, 1:].flatten())

    return GPT()
