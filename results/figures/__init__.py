"""The figures that `meshmark plot` draws."""
