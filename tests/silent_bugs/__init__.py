"""All bugs of the museum, in the order of the page."""

from tests.silent_bugs import (
    averages,
    experts,
    further_tokens,
    latents,
    long_sequences,
    matrices,
    norms,
    pipelines,
    replicated,
    state,
)

KINDS = replicated, averages, norms, latents, further_tokens, experts, long_sequences, pipelines, state, matrices
BUGS = [bug for kind in KINDS for bug in kind.BUGS]
