"""What the axes of a mesh split: the layout of a strategy, and the parts of each weight.

Start at `layout.Layout`.
"""
