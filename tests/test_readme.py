"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_example_runs_as_it_stands():
    """The code block is a program that a newcomer can paste."""
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5."), "the loss of a uniform guess over 256 bytes is log(256) = 5.5"


def test_every_file_that_it_links_to_is_there():
    """Pictures and pages."""
    linked = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert len(linked) >= 3
    assert not [path for path in linked if not (ROOT / path).exists()]
