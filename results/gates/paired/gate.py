"""Entry point of the paired gate: its arguments, the two checkouts, and the report on the comparison."""

import argparse
import contextlib
import functools
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cli.child import ServerFailure
from benchmarks.cli.ending import Refused
from benchmarks.cli.statuses import INTERRUPTED
from results.gates.paired.checkouts import Checkout, CheckoutError, Introduction, checked_out, introduce
from results.gates.paired.comparison import Comparison, Design, launched
from results.gates.paired.conclusions import conclude
from results.gates.verdict import Report
from results.records.launches import MIN_LAUNCHES
from results.records.reading import NotComparable

SIGNALS = signal.SIGINT, signal.SIGTERM


def run(options: argparse.Namespace) -> Report:
    """Compare two checkouts."""
    if options.launches < MIN_LAUNCHES:
        raise Refused(f"{options.launches} launches settle nothing; use {MIN_LAUNCHES} or more")
    started = time.monotonic()
    try:
        with (
            interruptible(),
            checked_out(options.base, options.base_python) as base,
            checked_out(options.head, options.head_python) as head,
        ):
            return compare(base, head, options, started)
    except CheckoutError as error:
        return Report("step times", refusal="broken input", reason=str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # an exception would print a traceback


def compare(base: Checkout, head: Checkout, options: argparse.Namespace, started: float) -> Report:
    """Compare two checkouts. `started` is the monotonic time in seconds at which the time budget began."""
    of_base, of_head = introduced(base, head, options)
    cases = {case: key for case, key in of_base.cases.items() if case in of_head.cases}
    if not cases:
        first, other = next(iter(of_base.cases)), next(iter(of_head.cases))
        raise NotComparable(f"no case of BASE is in HEAD: BASE begins with {first}, HEAD with {other}")
    left_seconds = max(0.0, options.time_budget - (time.monotonic() - started))
    comparison = Comparison(
        functools.partial(launched, base, head, options.selection, options.case_timeout),
        cases,
        Design(options.launches, options.blocks, options.minimum_effect, left_seconds, options.seed),
    )
    title = f"step times, {base.name} -> {head.name}"
    try:
        comparison.run()
    except KeyboardInterrupt:
        for number in SIGNALS:  # a second one, while workers end, loses no report
            signal.signal(number, signal.SIG_IGN)
        report = conclude(f"{title}, stopped before the end", of_base, of_head, comparison)
        return replace(report, stopped=True)
    return conclude(title, of_base, of_head, comparison)


def introduced(base: Checkout, head: Checkout, options: argparse.Namespace) -> list[Introduction]:
    """Return the introductions of BASE and HEAD."""
    introductions, refusals = [], []
    for checkout in (base, head):
        try:
            introductions.append(introduce(checkout, options.selection, options.case_timeout))
        except ServerFailure as failure:
            if failure.status != "refused":
                raise CheckoutError(f"{checkout.name} does not start: {failure}") from failure
            refusals.append(f"{checkout.name} refuses the selection: {failure.reason}")
    if len(refusals) == 2:
        raise Refused(refusals[1])
    if refusals:
        raise NotComparable(refusals[0])
    here, there = (introduction.devices for introduction in introductions)
    if here != there:
        raise NotComparable(f"BASE runs on {here} and HEAD on {there}; name interpreters that see the same devices")
    return introductions


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM too, so that a job stopped by a service cleans up as after Ctrl-C."""
    before = [signal.signal(number, signal.default_int_handler) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
