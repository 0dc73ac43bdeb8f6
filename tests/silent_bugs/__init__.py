"""All bugs of the museum, in the order of the page."""

from tests.silent_bugs import (
    averages,
    experts,
    latents,
    long_sequences,
    matrices,
    norms,
    pipelines,
    replicated,
    state,
    token_prediction,
)

KINDS = replicated, averages, norms, latents, token_prediction, experts, long_sequences, pipelines, state, matrices
BUGS = [bug for kind in KINDS for bug in kind.BUGS]
