"""Lists the strategies, with their mesh axes and options: `meshmark strategies`."""

from benchmarks.cli.tables import aligned
from strategies import STRATEGIES


def main(_: object = None) -> None:
    """Print the name, mesh axes and options of each strategy, including those that `MESHMARK_STRATEGIES` adds."""
    found = [(name, ", ".join(one.axis_names), ", ".join(one.options)) for name, one in STRATEGIES.items()]
    print("\n".join(aligned([("strategy", "mesh axes", "options"), *found])))
