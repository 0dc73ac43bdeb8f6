"""What is measured: a case, how it can fail, and the row that it leaves."""
