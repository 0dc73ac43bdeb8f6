"""Matmuls with weights. Dims: B batch, T tokens, D embed, F features, A the last dim of a weight."""

from jaxtyping import Array, Float


def matmul(x_BTD: Array, w_DF: Array) -> Array:
    """Matmul over the last dim. It is two-dimensional: XLA's CPU backend runs that about twice as fast."""
    return (x_BTD.reshape(-1, x_BTD.shape[-1]) @ w_DF).reshape(*x_BTD.shape[:-1], -1)


def project(x_BTD: Float[Array, "B T D"], w_DA: Float[Array, "D *more A"]) -> Float[Array, "B T *more A"]:
    """Project features with one matmul, without biases. A weight may have more dims between D and A."""
    return matmul(x_BTD, w_DA.reshape(len(w_DA), -1)).reshape(*x_BTD.shape[:-1], *w_DA.shape[1:])
