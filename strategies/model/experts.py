"""A mixture of experts in place of an MLP: each token goes to k of E experts (Shazeer et al. 2017, section 2.1).

Each expert is a gated MLP, SwiGLU (Shazeer 2020). Tokens are dispatched to rows; the outputs are combined into one sum
per token, weighted by the router (Lepikhin et al. 2020, "GShard", section 2.2). There are two kinds of rows:

    buffers, with a capacity factor: an expert has C rows for each group of tokens. Groups are consecutive tokens of a
        sequence, whatever the mesh, so one device and many drop the same choices.
    blocks, without a capacity factor: a block holds rows of one expert, and an expert has as many blocks as its tokens
        fill (Gale et al. 2022, "MegaBlocks", section 5). Nothing is dropped (expert_rows.py). Where the compiler
        partitions the step or gathers weights in loops, buffers are used instead, with C the size of a group. Experts
        then compute E / k times the rows that they need.

The router's weight multiplies an expert's hidden features. That equals weighting its output, and the backward pass
needs no expert's output.

Dims: B batch, T tokens, N = B x T, D embed, E experts, F hidden features of an expert, G groups, C capacity, S blocks,
R rows of all buffers or blocks, or of one, H hidden features of the shared expert.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.gpt_config import GPTConfig
from strategies.infeasible import WrongSize, divisors
from strategies.model.expert_rows import (
    blocks_of,
    fill_rows,
    filled_blocks,
)
from strategies.model.grouped_matmul import Rows, from_rows
from strategies.model.hooks import Hooks, LayerInfo
from strategies.model.layers import Extras, Result, Sums
from strategies.model.parts import Part, add_branch
from strategies.model.remat import KEPT, TOTALS
from strategies.model.router import (
    Routed,
    Routes,
    RowAssignment,
    block_slots,
    choices_of,
    choose,
    dropped_choices,
    forced,
    load_term,
    slots,
)
from strategies.model.weights import WeightSpec, matmul, matrix, vector


class Experts(Part):
    """Router, experts and shared expert. A tensor axis splits the hidden features, an expert axis the experts."""

    extras = ("balance_loss", "router_z_loss")
    router_DE: nnx.Param
    router_bias_E: nnx.Param | None = None
    gate_EDF: nnx.Param
    up_EDF: nnx.Param
    down_EFD: nnx.Param

    @staticmethod
    def weights(config: GPTConfig) -> Mapping[str, WeightSpec]:
        """The last matmuls' initial deviation is smaller by sqrt(2 layers)."""
        out = partial(matrix, deviation=0.02 * (2 * config.layers) ** -0.5)
        weights = {
            "router_DE": matrix("embed", "routes"),
            **({} if config.router_bias_rate is None else {"router_bias_E": vector("routes", trained=False)}),
            "gate_EDF": matrix("experts", "embed", "expert_mlp"),
            "up_EDF": matrix("experts", "embed", "expert_mlp"),
            "down_EFD": out("experts", "expert_mlp", "embed"),
        }
        if config.shared_mlp:
            into = matrix("embed", "shared_mlp")
            weights |= {"shared_gate_DH": into, "shared_up_DH": into, "shared_down_HD": out("shared_mlp", "embed")}
        return weights

    def __call__(self, x_BTD: Array, normed_BTD: Array, info: LayerInfo) -> Result:
        """Add the experts' outputs to x. The hook `sum` completes sums over devices that split hidden features."""
        y_BTD, sums = info.hooks.mixture(self, normed_BTD, info)
        return add_branch(x_BTD, y_BTD, info.hooks), sums

    def mixed(self, normed_BTD: Array, info: LayerInfo) -> tuple[Array, Sums]:
        """The experts' outputs, as partial sums over hidden features, and sums over this device's tokens.

        The hook `exchange` exchanges tokens with devices that hold other experts, or `dispatch` and `combine` rows of
        buffers.
        """
        config, hooks = self.config, info.hooks
        experts, (_, tokens, embed) = config.dim_sizes["experts"], normed_BTD.shape
        all_kept = config.capacity_factor is None  # one group then has all tokens of a sequence on this device
        group, capacity = (tokens, tokens) if all_kept else (config.group_tokens, config.capacity)
        x_ND = normed_BTD.reshape(-1, embed)

        routes = self.routes(x_ND, info)
        count_E = choices_of(routes.experts_Nk, experts)
        sums = {"count_E": count_E, "probs_E": routes.probs_NE.sum(0), "squares": jnp.square(routes.log_z_N).sum()}
        if config.balance_over == "sequence":
            sums["balance"] = self._balance_of_sequences(routes, len(normed_BTD), hooks)
        sums["dropped"] = dropped_choices(routes.experts_Nk, experts, len(x_ND) // group, capacity)
        routed = Routed(x_ND, routes.weights_Nk.astype(x_ND.dtype), routes.experts_Nk, experts)
        routed, give_back = hooks.exchange(routed)
        if hooks.grouped_matmuls:
            sums_ND = self._sums_of_blocks(routed, routes.experts_Nk.size, hooks)
        else:
            of_buffers = self._sums_by_part if hooks.compiler_shards[0] > 1 else self._sums
            sums_ND = of_buffers(routed, len(routed.x_ND) // group, capacity, hooks)
        y_ND = give_back(sums_ND)
        y_ND = y_ND + self._shared(x_ND) if config.shared_mlp else y_ND
        return y_ND.reshape(normed_BTD.shape), sums

    def extras_of(self, sums: Sums, hooks: Hooks) -> Extras:
        """The terms that `losses` adds to the loss."""
        return hooks.mixture_losses(self, sums, hooks)

    def losses(self, sums: Sums, hooks: Hooks) -> Extras:
        """The load-balancing loss and the z-loss, as sums over this device's tokens.

        The load-balancing loss is E sum_e f_e P_e, with f_e the share of all choices that choose expert e, and P_e its
        mean probability (Fedus et al. 2021, "Switch Transformer", equations 4 to 6), over the whole batch or
        microbatch, or over each sequence and then averaged (DeepSeek-AI 2024, "DeepSeek-V3", equations 17 to 20). Its
        gradient flows through P_e alone, so with f_e summed over devices (the hooks `batch_sum` and `sequence_sum`) it
        is a sum over tokens. The z-loss is the mean of (log Z)^2 (Zoph et al. 2022, "ST-MoE", equation 5).
        """
        config, count_E = self.config, sums["count_E"]
        load = 0 if self.router_bias_E is None else load_term(self.router_bias_E[...], count_E)
        if config.balance_over == "sequence":
            balance = sums["balance"]
        else:
            count_E = checkpoint_name(hooks.batch_sum(count_E), TOTALS) if config.balance_loss else count_E
            balance = len(count_E) * (count_E / count_E.sum() * sums["probs_E"]).sum()
        losses = {"balance_loss": config.balance_loss * balance + load}
        return {**losses, "router_z_loss": config.router_z_loss * sums["squares"]}

    def _balance_of_sequences(self, routes: Routes, sequences: int, hooks: Hooks) -> Array:
        """The load-balancing losses of sequences, as a sum over this device's tokens."""
        experts, choices = routes.probs_NE.shape[1], self.config.experts_per_token * self.config.sequence
        experts_BTk = routes.experts_Nk.reshape(sequences, -1, self.config.experts_per_token)
        count_BE = jax.vmap(partial(choices_of, experts=experts))(experts_BTk)
        count_BE = checkpoint_name(hooks.sequence_sum(count_BE), TOTALS)
        return experts * (count_BE / choices * routes.probs_NE.reshape(sequences, -1, experts).sum(1)).sum()

    def routes(self, x_ND: Array, info: LayerInfo) -> Routes:
        """The router's decisions for tokens."""
        forced_Tk = None if self.config.routing == "learned" else forced(self.config, info.positions_T)
        bias_E = None if self.router_bias_E is None else self.router_bias_E[...]
        return choose(self.logits(x_ND), self.config, forced_Tk, bias_E)

    def logits(self, x_ND: Array) -> Array:
        """Router logits."""
        return matmul(x_ND, self.router_DE[...])

    def _sums(self, routed: Routed, groups: int, capacity: int, hooks: Hooks) -> Float[Array, "N D"]:
        """Each token's sum of outputs of this device's experts, computed in buffers."""
        found = slots(routed.experts_Nk, routed.experts, groups, capacity)
        buffers = routed.experts, groups, capacity, -1
        found, x_EGCD, weights_EGC1 = fill_rows(routed.x_ND, routed.weights_Nk, found, buffers)
        outputs_EGCD = self.outputs(*hooks.dispatch(x_EGCD, weights_EGC1), Rows.of_buffers(), hooks)
        return from_rows(hooks.combine(outputs_EGCD).reshape(-1, self.config.embed), found, routed.experts_Nk.shape[1])

    def _sums_of_blocks(self, routed: Routed, choices: int, hooks: Hooks) -> Float[Array, "N D"]:
        """`_sums` with blocks in place of buffers. Under balanced routing this device's experts have `choices`."""
        (tokens, chosen), experts = routed.experts_Nk.shape, routed.experts
        blocks = blocks_of(tokens * min(chosen, experts), choices, experts)
        found, expert_S = block_slots(routed.experts_Nk, experts, *blocks)
        filled = filled_blocks(choices, experts, *blocks)
        assert hooks.grouped_matmuls
        rows = Rows.of_blocks(checkpoint_name(expert_S, KEPT), filled, hooks.grouped_matmuls)
        found, x_SRD, weights_SR1 = fill_rows(routed.x_ND, routed.weights_Nk, found, (*blocks, -1))
        outputs_SRD = self.outputs(x_SRD, weights_SR1, rows, hooks)
        return from_rows(outputs_SRD.reshape(-1, self.config.embed), found, chosen)

    def _sums_by_part(self, routed: Routed, groups: int, capacity: int, hooks: Hooks) -> Float[Array, "N D"]:
        """`_sums` where the compiler splits the tokens: rows are indexed within each device's part (P).

        With indices into the whole batch the compiler could not see that, and would gather all tokens.
        """
        config, chosen, (parts, _) = self.config, self.config.experts_per_token, hooks.compiler_shards
        buffers = routed.experts, groups // parts, capacity, -1

        def fill(x_ND: Array, weights_Nk: Array, experts_Nk: Array) -> tuple[RowAssignment, Array, Array]:
            found = slots(experts_Nk, routed.experts, groups // parts, capacity)
            return fill_rows(x_ND, weights_Nk, found, buffers)

        by_part = [array.reshape(parts, -1, array.shape[-1]) for array in routed[:3]]
        found, *arrays = jax.vmap(fill, out_axes=(0, 1, 1))(*by_part)
        rows = (rows_EPGCX.reshape(routed.experts, groups, capacity, -1) for rows_EPGCX in arrays)
        outputs_EGCD = self.outputs(*hooks.dispatch(*rows), Rows.of_buffers(), hooks)
        rows_EPRD = hooks.combine(outputs_EGCD).reshape(routed.experts, parts, -1, config.embed)
        sums = jax.vmap(lambda rows_ERD, found: from_rows(rows_ERD.reshape(-1, config.embed), found, chosen), (1, 0))
        return sums(rows_EPRD, found).reshape(-1, config.embed)

    def outputs(self, x_XRD: Array, weights_XR1: Array, rows: Rows, hooks: Hooks) -> Array:
        """Weighted outputs of this device's experts for rows, as partial sums over F that `hooks.sum` completes."""
        named = partial(checkpoint_name, name=KEPT)
        gate_XRF = named(rows.matmul(x_XRD, self.gate_EDF[...]))
        up_XRF = named(rows.matmul(x_XRD, self.up_EDF[...]))
        return rows.matmul(jax.nn.silu(gate_XRF) * up_XRF * weights_XR1, self.down_EFD[...])

    def _shared(self, x_ND: Array) -> Array:
        weights: Any = self
        hidden_NH = jax.nn.silu(matmul(x_ND, weights.shared_gate_DH[...])) * matmul(x_ND, weights.shared_up_DH[...])
        return matmul(hidden_NH, weights.shared_down_HD[...])


def require_groups(config: GPTConfig, tokens: int, why: str) -> None:
    """Check that a device's consecutive tokens of a sequence are whole groups, if tokens may be dropped."""
    if config.experts and config.capacity_factor is not None and tokens % config.group_tokens:
        problem = f"groups of {config.group_tokens} tokens do not divide the {tokens} {why}"
        raise WrongSize(problem, "expert_group", divisors(tokens), ", or omit capacity_factor")
