"""What the numbers mean: reads benchmark records, and draws their curves. Needs no JAX."""
