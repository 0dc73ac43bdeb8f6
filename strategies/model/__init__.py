"""The GPT that all strategies train: attention, blocks, loss, and the hooks by which a strategy changes them.

It knows no strategy and no mesh. Start at `gpt.GPT`.
"""
