"""What a step costs: cases, their measurement, and one record for each."""
