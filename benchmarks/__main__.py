"""`python -m benchmarks COMMAND ...` is `meshmark COMMAND ...`."""

from benchmarks.cli.main import main

if __name__ == "__main__":
    main()
