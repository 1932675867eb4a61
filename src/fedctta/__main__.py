"""`python -m fedctta` is the `fedctta` command."""

from fedctta.cli import main

main()
