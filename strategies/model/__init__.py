"""The GPT that all strategies train: attention, blocks, loss, and the hooks by which a strategy acts inside the model.

This package knows no strategy and no mesh. Start at `gpt.GPT`.
"""
