"""Pages that commands write from records."""
