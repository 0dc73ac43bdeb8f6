"""A plugin that drops tests, as those do that shard or select: the first two."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the first two."""
    config.hook.pytest_deselected(items=items[:2])
    del items[:2]
