"""Environment variables of JAX that it would refuse with a traceback while it is imported."""

import os
import re

MOST_VIRTUAL_DEVICES = 65_536
DEVICES = "JAX_NUM_CPU_DEVICES"


def environment_problem() -> str:
    """What is wrong with the environment, in one line; empty if nothing is."""
    value = os.environ.get(DEVICES)
    if value is None or (re.fullmatch(r"[0-9]{1,9}", value) and 1 <= int(value) <= MOST_VIRTUAL_DEVICES):
        return ""
    allowed = f"give a whole number from 1 to {MOST_VIRTUAL_DEVICES:,}, or unset it"
    return f"{DEVICES}={value[:100]!r} is no number of devices; {allowed}"
