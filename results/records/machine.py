"""What a run was measured on, and in what two machines differ: a refusal names both."""

from collections.abc import Iterator, Mapping
from typing import Any

DECISIVE = (
    *("cpu", "versions", "compiler_versions", "xla_flags", "libtpu_init_args", "jax_settings", "glibc_tunables"),
    *("platform", "platform_version", "device_kind", "device_count", "architecture", "process_count", "topology"),
)
"""What the fingerprint of a run is made of, by its names in `machine_info` (benchmarks/timing/machine.py)."""


def facts(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The decisive facts, one of a group under both names.

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
    """Say each fact that differs, of whom it is what.

    >>> [*differences({"jax": "0.10.2"}, {"jax": "0.12.0"}, ("BASE", "HEAD"))]
    ['jax is 0.10.2 in BASE and 0.12.0 in HEAD']
    """
    for name in {**base, **head}:
        if base.get(name) != head.get(name):
            yield f"{name} is {base.get(name)} in {names[0]} and {head.get(name)} in {names[1]}"


def other_machine(base: Mapping[str, Any], head: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Say why times of two runs cannot be set side by side, given their `machine_info`; empty if they can."""
    ours, theirs = base.get("fingerprint"), head.get("fingerprint")
    if ours == theirs and ours is not None:
        return ""
    unnamed = f"fingerprint is {ours} in {names[0]} and {theirs} in {names[1]}"
    return "; ".join(differences(facts(base), facts(head), names)) or unnamed
