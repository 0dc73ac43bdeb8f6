"""Sharding: which mesh axes split which dims of a strategy's arrays, and the shards of each weight.

Start at `layout.Layout`.
"""
