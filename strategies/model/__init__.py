"""The GPT that all strategies train: attention, blocks, loss, and the hooks through which a strategy acts inside it.

This package knows no strategy and no mesh. Start at `gpt.GPT`.
"""
