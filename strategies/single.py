"""One device: the reference that every other strategy must equal. It has no axes and no communication."""

from strategies.strategy import Strategy

SINGLE = Strategy("single", (), most_devices=1)
