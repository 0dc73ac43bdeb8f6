"""Master weights: float32 copies of weights that the state holds in the compute dtype.

With `TrainConfig.master="float32"` the state has master weights (Micikevicius et al. 2018, "Mixed Precision Training",
section 3.1), split as in Rajbhandari et al. 2020, "ZeRO", section 5.1:

    master       State.params            State.master               gathered after the update
    "none"       W[D,F] in float32       -                          W[D_data,F] in float32
    "float32"    W[D,F] in `dtype`       W[D_data,F] in float32     W[D_data,F] in `dtype`

The forward pass casts float32 weights to `dtype` anyway, so with master weights it computes with the same numbers. The
two gradients of a tied table are summed in `dtype`. Vectors (norm weights and biases) are used in float32
(model/weights.py), and therefore held and gathered in float32.
"""

from strategies.config import Dtype, TrainConfig
from strategies.core.placement import Placement
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.gpt import map_weights
from strategies.model.weights import Weights, WeightSpec


def require_master(placement: Placement, train: TrainConfig) -> None:
    """Refuse `master` where it changes nothing.

    Raises:
        Infeasible: weights are sharded already, every device updates all weights, or the compute dtype is float32.
    """
    if train.master == "none":
        return
    asked = f"master={train.master}"
    if placement.shards:
        problem = f"{asked} changes nothing where weights are sharded over {' x '.join(placement.shards)}"
        raise Infeasible(f"{problem}: the shards are float32 already, and are gathered in dtype; leave it out")
    if not placement.updates:
        raise Infeasible(f"{asked} needs devices that update shards of weights; leave it out, or use zero1 or zero2")
    if train.dtype == "float32":
        raise Infeasible(f"{asked} changes nothing with dtype=float32; leave it out, or use dtype=bfloat16 or float16")


def held_dtype(spec: WeightSpec, train: TrainConfig) -> Dtype:
    """The dtype of a weight in `State.params`."""
    return "float32" if train.master == "none" else spec.used_dtype(train.dtype)


def held(weights: Weights, config: GPTConfig, train: TrainConfig) -> tuple[Weights, Weights | None]:
    """Float32 weights -> the same as `State.params` and as `State.master` hold them."""
    if train.master == "none":
        return weights, None
    return map_weights(lambda weight, spec: weight.astype(held_dtype(spec, train)), config, weights), weights
