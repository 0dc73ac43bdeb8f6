"""Which platforms JAX looks for on this machine."""

import importlib.util
import os
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path

import jax

from benchmarks.devices.topology import CPU, NO_TPU_HOST

GOOGLE = "0x1ae0"
"""Vendor of TPUs on the PCI bus, by which JAX finds them as well."""
PCI = Path("/sys/bus/pci/devices")
DEVICE_FILES = "accel*", "vfio/[0-9]*"
"""Files in /dev of TPUs, which containers have where they do not see the bus."""
SET_BY_JAX = "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION"
FORCED = "JAX_FORCE_TPU_INIT"


def skip_absent_tpus() -> None:
    """Leave libtpu unloaded where there is no TPU. Must be called before any backend starts.

    The extra `tpu` installs libtpu for its compiler. JAX then starts it on every machine: on one without TPUs it waits,
    reports that it has failed, and prints stack traces when a signal ends the process. A platform that the user chose,
    plugins of other accelerators, and anything that hints at a TPU leave JAX's choice as it is.
    """
    if getattr(jax.config, "jax_platforms", None) or tpu_hinted() or other_accelerators():
        return
    jax.config.update("jax_platforms", CPU)


def tpu_hinted(bus: Path = PCI, files: Path = Path("/dev")) -> bool:
    """Whether this machine may have TPUs: by its bus, its device files, or the environment of a TPU host."""
    ours = {*NO_TPU_HOST, *SET_BY_JAX}
    if FORCED in os.environ or any(name.startswith("TPU_") and name not in ours for name in os.environ):
        return True
    if any(file.is_file() and file.read_text().strip() == GOOGLE for file in bus.glob("*/vendor")):
        return True
    return any(True for pattern in DEVICE_FILES for _ in files.glob(pattern))


def other_accelerators() -> bool:
    """Whether a plugin of another accelerator is installed, such as of GPUs."""
    modules = importlib.util.find_spec("jax_plugins")
    paths = (modules and modules.submodule_search_locations) or ()
    return bool(entry_points(group="jax_plugins")) or any(True for _ in pkgutil.iter_modules(list(paths)))
