"""A museum of silent bugs: real ones of parallel training, each planted in a strategy that is sound without it.

They raise no error, losses stay finite, and most loss curves look as they should. The files beside this one have the
bugs by kind; docs/reference/silent-bugs.md is made of them (page.py).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.backends.device_mesh import first_devices
from strategies.gpt_config import GPTConfig
from strategies.step import Step
from strategies.strategy import Strategy
from tests.silent_bugs.changed_implementations import Plant

SMALL = dataclasses.replace(PRESETS["nano"], layers=2, embed=32, heads=4, sequence=16, vocab=257)
"""257 is prime, so every strategy that splits the vocabulary pads it."""
BATCH = 16
ANYWHERE = "clip_norm", "dtype", "optimizer"
"""Options that change what one device computes, too."""
QWEN3 = {"block": "qwen3", "tied": False, "key_heads": 1}
"""Rotary positions, norms of heads, and one head of keys, of which tensor devices have copies."""
GPT_OSS = {"block": "gpt_oss", "tied": False, "experts": 4, "experts_per_token": 2}
"""Sinks, and experts with biases."""
MOE = {"block": "llama", "tied": False, "experts": 4, "experts_per_token": 2}
LATENT = {
    **{"block": "llama", "tied": False, "latent_rank": 8, "query_rank": 12},
    **{"head_size": 12, "rotary_size": 4, "value_size": 6},
}
"""Latent attention, whose rotary key all heads share."""
FORCED = {**MOE, "routing": "balanced", "balance_loss": 0.02, "router_z_loss": 0.002}
"""A router with losses. Tokens go where their position says, so that no bug hides behind choices that it turned."""
LEARNED = {**MOE, "router": "sigmoid", "router_bias_rate": 0.01, "balance_loss": 8.0}
"""A router with biases, and a balance loss that is seen beside them."""


@dataclass(frozen=True)
class Bug:
    """A bug as it was reported, and how it is planted here.

    Attributes:
        name: for test ids.
        link: the report or the fix; of a bug that was found in this project, the experiment.
        was: what was wrong there, in one sentence.
        wrong: which weight or number is wrong, as the page names it.
        named: a pattern of what the check's message must name.
        strategy, mesh: where it is planted.
        plant: how.
        model, train: fields of `GPTConfig` and `TrainConfig` that the bug needs.
    """

    name: str
    link: str
    was: str
    wrong: str
    named: str
    strategy: str
    mesh: str
    plant: Plant
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The id of its test."""
        return self.name

    @cached_property
    def case(self) -> tuple[Any, ...]:
        """Where it is planted: bugs with equal cases have the same sound step."""
        return self.strategy, self.mesh, *self.model.items(), *self.train.items()

    @property
    def of_one_device(self) -> tuple[Any, ...]:
        """What its reference depends on."""
        return dict(self.model), {name: self.train[name] for name in ANYWHERE if name in self.train}

    def planted(self) -> Strategy:
        """The strategy with the bug, under the name of the sound one."""
        sound = STRATEGIES[self.strategy]
        return dataclasses.replace(sound, implement=lambda plan, mesh: self.plant(plan, sound.implement(plan, mesh)))

    def step(self, *, sound: bool = False, base: GPTConfig = SMALL, **train: Any) -> Step:
        """The step with the bug, or the sound one, of a model like `base`."""
        strategy = STRATEGIES[self.strategy] if sound else self.planted()
        mesh, config = MeshSpec.parse(self.mesh), dataclasses.replace(base, **self.model)
        options = TrainConfig(BATCH, **{**self.train, **train})
        return strategy.build(config, mesh, options)

    def reference(self, *, base: GPTConfig = SMALL, **train: Any) -> Step:
        """One device with the same model and options."""
        mesh, config = MeshSpec.parse("data=1"), dataclasses.replace(base, **self.model)
        options = {name: value for name, value in self.train.items() if name in ANYWHERE} | train
        return STRATEGIES["single"].build(config, mesh, TrainConfig(BATCH, **options), first_devices(1))
