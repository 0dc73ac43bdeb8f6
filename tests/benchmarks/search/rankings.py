"""Search spaces on H100s, and their ranked candidates."""

from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import ranked
from benchmarks.simulate.machines import machine
from strategies import PRESETS

TOPOLOGY = Topology.parse("h100:2x8")
H100S = machine("meshmark_gpus", "h100")


def space(preset="gpt2-xl", topology=TOPOLOGY, batch_size=64, config=None, **restricted):
    """A search space."""
    return SearchSpace(topology, preset, config or PRESETS[preset], batch_size, "bfloat16", **restricted)


def ranking(machine=H100S, topology=TOPOLOGY, **restricted):
    """The ranked candidates of a search space."""
    return ranked(space(topology=topology, **restricted).cases(), machine)
