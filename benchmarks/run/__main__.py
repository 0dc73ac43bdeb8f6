"""Start `python -m benchmarks.run` (program.py), and answer a supervisor even if JAX cannot be loaded."""

import sys

from benchmarks.cli.child import parent_connection
from benchmarks.cli.statuses import REFUSED


def main(arguments: list[str] | None = None) -> int:
    """Run the program, and return its exit status."""
    supervisor = parent_connection()
    try:
        from benchmarks.run import program
    except (ValueError, RuntimeError) as error:  # such as an invalid JAX setting, or a strategy that is not a module
        if not supervisor:
            raise
        what = "" if "MESHMARK_STRATEGIES" in str(error) else "JAX cannot be loaded: "
        supervisor.send({"refused": f"{what}{error}"})
        return REFUSED
    return program.main(supervisor, arguments)


if __name__ == "__main__":
    sys.exit(main())
