"""What a search reports: the reasons for which candidates are infeasible."""

from benchmarks.search.findings import reason_template


def test_reasons_of_one_kind_differ_in_numbers_only() -> None:
    """Two reasons are of one kind if they differ in numbers and in the suggested way out only."""
    one, other = ("tensor=3 does not divide heads=8; tensor can be 1", "tensor=16 does not divide heads=8; or 2")
    assert reason_template(one) == reason_template(other) != reason_template("context=16 does not divide heads=8; or 2")
