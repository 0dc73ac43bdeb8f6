"""Facts about one chip, compiler or transport: defaults as data, and work-arounds with their reasons.

No other package names a chip. It asks a `Backend` for a fact. This package knows no strategy and no model. Start at
`backend.backend_of`.
"""
