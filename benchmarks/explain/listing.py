"""Lists the strategies, with their mesh axes and options: `meshmark strategies`."""

from strategies import STRATEGIES


def main(_: object = None) -> None:
    """Print the name, mesh axes and options of each strategy, including those that `MESHMARK_STRATEGIES` adds."""
    for name, strategy in STRATEGIES.items():
        print(f"{name:12}{', '.join(strategy.axis_names):40}{', '.join(strategy.options)}".rstrip())
