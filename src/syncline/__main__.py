"""`python -m syncline`, where the script is not on the path."""

from syncline.cli.main import main

main()
