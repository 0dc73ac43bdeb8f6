"""The timing servers of two checkouts, and what a checkout says of itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cli.child import PROTOCOL, Server
from results.gates.paired.checkouts import Checkout, CheckoutError
from results.records.reading import Case, NotComparable
from strategies.schema import checked


def worker(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Server:
    """The timing server of a checkout, which its first request starts.

    Args:
        checkout: the checkout.
        selection: command line options that select its cases.
        patience_seconds: longest wait for an answer.
    """
    return Server(
        selection,
        python=checkout.python,
        folder=checkout.root,
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # three processes share a GPU's memory
        patience_seconds=patience_seconds,
        quiet=True,
    )


@dataclass(frozen=True)
class Introduction:
    """A checkout's description of itself.

    Attributes:
        cases: ids in the server, by the cases' names in reports.
        environment: versions of Python and of the packages that it runs with.
        devices: description of the devices that it runs on.
    """

    cases: dict[str, str]
    environment: dict[str, str]
    devices: str


def introduce(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Introduction:
    """Ask a checkout for its cases, versions and devices."""
    with worker(checkout, selection, patience_seconds) as server:
        answer = checked(server.ask("hello"), dict[str, Any], "the answer of a timing server")
    if answer["protocol"] != PROTOCOL:
        raise NotComparable(
            f"the timing server of {checkout.name} speaks protocol {answer['protocol']}, and this is {PROTOCOL}; "
            "compare from a checkout as new as the newer of the two"
        )
    if answer["root"] != str(checkout.root):
        raise CheckoutError(f"{checkout.name} would run the code in {answer['root']}; unset PYTHONSAFEPATH")
    cases = {str(Case.of(facts, f"a case of {checkout.name}")): facts["id"] for facts in answer["cases"]}
    return Introduction(cases, answer["environment"], answer["devices"])
