"""Where a strategy acts inside the model. The model calls these functions, and knows no devices.

Dims: B batch, T tokens, D embed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Int

from strategies.model.attention_kernels import causal_attention, project


@dataclass(frozen=True)
class Hooks:
    """Where a strategy acts inside the model; as they stand, the identities of one device.

    Attributes:
        gather: a weight as it is stored here, its dims, and a dtype -> as it is used, in that dtype; of the blocks,
            one layer's.
        sum: a partial product of this device -> the whole, for the tokens whose residual stream is held here.
        all_tokens: an array [B,T,D] of the tokens held here -> of all tokens.
        own_tokens: an array [T,D] of all tokens -> of those held here.
        own_context: an array of whole sequences, and which of its dims their tokens are -> this device's part of each;
            to the other hooks, all tokens are those of this part.
        head: the residual stream before the head, and the weights of its norm, as they are stored here -> both.
        project: such an array of features and the weights of queries, keys and values -> these, each as many features.
        attend: queries, keys and values of that part, head dim and kind -> as `causal_attention` in whole sequences.
        embed_sum: embeddings found in the rows held here -> the residual stream, for the tokens held here.
        vocab_start: rows of the vocabulary held here -> the first of them.
        vocab_sum: a sum over the rows held here -> over all rows.
        vocab_max: a maximum over the rows held here -> over all rows.
        parts: into how many the compiler cuts, over devices, the tokens and the vocabulary that are whole here.
    """

    gather: Callable[[Array, Sequence[str], str], Array] = lambda weight, dims, dtype: weight.astype(dtype)
    sum: Callable[[Array], Array] = lambda x: x
    all_tokens: Callable[[Array], Array] = lambda x: x
    own_tokens: Callable[[Array], Array] = lambda x: x
    own_context: Callable[[Array, int], Array] = lambda x, dim: x
    head: Callable[[Array, Any], tuple[Array, Any]] = lambda x, weights: (x, weights)
    project: Callable[[Array, Array], Array] = project
    attend: Callable[[Array, int, str], Array] = causal_attention
    embed_sum: Callable[[Array], Array] = lambda x: x
    vocab_start: Callable[[int], Int[Array, ""] | int] = lambda rows: 0
    vocab_sum: Callable[[Array], Array] = lambda x: x
    vocab_max: Callable[[Array], Array] = lambda x: x
    parts: tuple[int, int] = (1, 1)


ONE_DEVICE = Hooks()
