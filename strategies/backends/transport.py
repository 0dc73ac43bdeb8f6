"""What is wrong in the transport between devices, and so must not be used."""

import jax


def reduce_scatters_wrongly() -> bool:
    """Whether the transport's reduce-scatter is wrong: that of gloo, by which several CPU processes communicate.

    The first device of a group sometimes finds numbers at the end of its part that are no sums (jax-ml/jax#40830; JAX
    0.10.2 and 0.12).
    """
    return jax.distributed.is_initialized() and jax.default_backend() == "cpu"
