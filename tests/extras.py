"""What some tests need that the extra `dev` does not install. Where it is missing, these tests are skipped by name.

Each is a marker, by which `.ci/run` runs what the test command of the README has skipped.
"""

import shutil
from importlib.util import find_spec

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

MISSING = {
    "libtpu": "" if find_spec("libtpu") else "takes the tpu extra: pip install -e '.[tpu]'",
    "cuda": "" if find_spec("jax_cuda13_plugin") else "takes the gpu extra: pip install -e '.[gpu]'",
    "tokenizers": "" if find_spec("tokenizers") else "takes the text extra: pip install -e '.[text]'",
    "chromium": "" if CHROMIUM else "takes chromium",
}
"""Marker of tests -> why they are skipped here; empty where they run."""
