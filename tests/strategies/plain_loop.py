"""A training loop as a user writes it: `python -m tests.strategies.plain_loop STRATEGY MESH STEPS [NAME=VALUE ...]`.

It never waits for a step. In the end it prints the last loss.
"""

import ast
import sys

import jax
import numpy as np

from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig

name, mesh, steps, *options = sys.argv[1:]
spec = MeshSpec.parse(mesh)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", spec.size)
train = {key: ast.literal_eval(value) for key, _, value in (option.partition("=") for option in options)}
experts = 8 if "expert" in spec.sizes else None
config = GPTConfig(layers=16, embed=32, heads=8, vocab=256, sequence=32, experts=experts)
step = STRATEGIES[name].build(config, spec, TrainConfig(16, **train))
state = step.init(jax.random.key(0))
batch = step.place(np.random.default_rng(0).integers(0, config.vocab, step.batch.shape))
metrics = {}
for _ in range(int(steps)):
    state, metrics = step(state, batch)
print(float(metrics["loss"]))
