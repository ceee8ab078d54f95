"""`python -m privfair`: the command line, for a machine on which the script is not on the path."""

from privfair.cli import main

if __name__ == "__main__":
    main()
