"""`python -m benchmarks COMMAND ...` is `meshmark COMMAND ...`."""

from benchmarks.commandline.main import main

if __name__ == "__main__":
    main()
