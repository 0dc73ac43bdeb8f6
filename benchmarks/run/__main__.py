"""Start the program that measures (program.py), and answer its supervisor even if JAX cannot be loaded."""

import sys

from benchmarks.cli.child import parent_connection
from benchmarks.cli.statuses import REFUSED


def main() -> int:
    """Run the program, and return its exit status."""
    if not (supervisor := parent_connection()):
        sys.exit("python -m benchmarks.run is started by `pytest benchmarks`; use that")
    try:
        from benchmarks.run import program
    except (ValueError, RuntimeError) as error:  # such as an invalid JAX setting, or a strategy that is not a module
        what = "" if "MESHMARK_STRATEGIES" in str(error) else "JAX cannot be loaded: "
        supervisor.send({"refused": f"{what}{error}"})
        return REFUSED
    return program.main(supervisor)


if __name__ == "__main__":
    sys.exit(main())
