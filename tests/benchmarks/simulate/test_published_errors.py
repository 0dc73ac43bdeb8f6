"""Predictions of published runs by the committed machine files stay as near as they were."""

import statistics
from collections import defaultdict
from functools import cache

import pytest

from benchmarks.simulate.predict import Prediction, Problem, errors, predicted, read_rows, work_of
from tests.processes import ROOT

PUBLISHED = ROOT / "results" / "published"
TABLES = sorted(PUBLISHED.glob("*.csv"))
MOST: dict[tuple[str, bool], float] = {
    ("a100_fsdp", False): 0.048,
    ("a100_megatron", False): 0.07,
    ("b200_megatron_core", False): 0.032,
    ("b200_megatron_core", True): 0.078,
    ("h100_fsdp", False): 0.168,
    ("megatron_bridge_blackwell", False): 0.084,
    ("megatron_bridge_blackwell", True): 0.213,
    ("megatron_bridge_h100", False): 0.042,
    ("megatron_bridge_h100", True): 0.297,
    ("meshmark_gpus", False): 0.083,
    ("meshmark_tpus", False): 0.061,
    ("meshmark_tpus", True): 0.33,
}
"""Machine file, and whether of mixtures of experts -> mean absolute error in sample that it stays below."""
WHOLE = (
    "megatron_a100_clusters.csv",
    "megatron_a100_node.csv",
    "mpt_fsdp_a100_80gb.csv",
    "mpt_fsdp_h100.csv",
    "megatron_korthikanti_2022.csv",
    "megatron_deepspeed_bigscience_2022.csv",
)
"""Tables of which every row is predicted."""
RANK_OF_CLUSTERS, REGRET_OF_HOSTS = 0.77, 0.04
"""Mean rank correlation of the works of clusters, and mean regret of those of single hosts, that were reached."""


@cache
def published(name):
    """Predictions of a published table by the committed machines."""
    return [predicted(row) for row in read_rows(PUBLISHED / name)]


def by_work(name):
    """Errors of a published table by work, of several configurations."""
    groups = defaultdict(list)
    for each in published(name):
        groups[work_of(each.row)].append(each)
    return [found for some in groups.values() if (found := errors(some)).runs > 1]


@cache
def by_machine():
    """Predictions of all measured rows, by machine file and by whether they are of mixtures of experts."""
    groups = defaultdict(list)
    for path in TABLES:
        for each in published(path.name):
            if isinstance(each, Prediction) and each.run.step_seconds:
                groups[each.machine.name, bool(each.row.get("experts"))].append(each)
    return groups


@pytest.mark.parametrize("name", MOST, ids=str)
def test_committed_machines_predict_published_runs(name):
    """The mean error is below what the machine file reached when it was committed."""
    assert errors(by_machine()[name]).mean < MOST[name]


@pytest.mark.parametrize("name", WHOLE)
def test_every_row_of_older_tables_is_predicted(name):
    """None has a problem."""
    assert [each for each in published(name) if isinstance(each, Problem)] == []


def test_configurations_of_one_work_are_ranked_as_well_as_before():
    """A better mean error may rank worse."""
    assert (
        statistics.mean(found.rank_correlation or 0 for found in by_work("megatron_a100_clusters.csv"))
        > RANK_OF_CLUSTERS
    )
    assert statistics.mean(found.regret for found in by_work("megatron_a100_node.csv")) < REGRET_OF_HOSTS


def test_every_machine_file_has_a_limit():
    """One of dense models, and one of mixtures, of which there are rows."""
    assert {*by_machine()} == {*MOST}
