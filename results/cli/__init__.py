"""What the commands of `results` share: parsers, formats of tables, and how they end."""
