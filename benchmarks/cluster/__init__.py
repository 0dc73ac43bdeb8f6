"""Several processes: how they find each other, answer together, and say who is gone."""
