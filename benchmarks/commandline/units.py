"""Formatting of amounts with units."""

PREFIXES = ("", "k", "M", "G", "T", "P")


def amount(value: float, unit: str) -> str:
    """An amount with three significant digits and a decimal prefix.

    >>> amount(39_300_000_000, "B"), amount(54_139_000_000_000, "FLOP"), amount(7, "B"), amount(999_900, "B")
    ('39.3 GB', '54.1 TFLOP', '7 B', '1 MB')
    """
    for prefix in PREFIXES[:-1]:
        if abs(float(f"{value:.3g}")) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:,.0f} {PREFIXES[-1]}{unit}"


def minutes(seconds: float) -> str:
    """Format a duration as minutes and seconds.

    >>> minutes(200)
    '3:20'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02}"
