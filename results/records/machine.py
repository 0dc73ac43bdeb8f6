"""The machine and versions of a run, and the differences between those of two runs."""

from collections.abc import Iterator, Mapping
from typing import Any

DECISIVE = (
    *("cpu", "versions", "compiler_versions", "xla_flags", "libtpu_init_args", "jax_settings", "glibc_tunables"),
    *("platform", "platform_version", "device_kind", "device_count", "architecture", "process_count", "topology"),
)
"""Keys of `machine_info` that determine the fingerprint of a run (benchmarks/run/machine.py)."""


def facts(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that determine the fingerprint; a fact in a group is named GROUP.FACT.

    >>> facts({"cpu": {"count": 2}, "platform": "cpu", "node": "here"})
    {'cpu.count': 2, 'platform': 'cpu'}
    """
    found = {}
    for name in DECISIVE:
        value = machine.get(name)
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": part for key, part in value.items()}
        elif name in machine:
            found[name] = value
    return found


def differences(base: Mapping[str, Any], head: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    """Describe each fact that differs, with the values of both runs; `names` are those of the runs.

    >>> [*differences({"jax": "0.10.2"}, {"jax": "0.12.0"}, ("BASE", "HEAD"))]
    ['jax is 0.10.2 in BASE and 0.12.0 in HEAD']
    """
    for name in {**base, **head}:
        if base.get(name) != head.get(name):
            yield f"{name} is {base.get(name)} in {names[0]} and {head.get(name)} in {names[1]}"


MOST_SHOWN = 4
"""Most differences between machines that a message names."""


def other_machine(base: Mapping[str, Any], head: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Explain why step times of two runs are not comparable, given their `machine_info`; "" if they are comparable."""
    ours, theirs = base.get("fingerprint"), head.get("fingerprint")
    if ours == theirs and ours is not None:
        return ""
    unnamed = f"fingerprint is {ours} in {names[0]} and {theirs} in {names[1]}"
    found = [*differences(facts(base), facts(head), names)]
    more = [f"{len(found) - MOST_SHOWN} more facts differ"] if len(found) > MOST_SHOWN else []
    return "; ".join([*found[:MOST_SHOWN], *more]) or unnamed
