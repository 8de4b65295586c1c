"""`python -m syncline.cli`, where the script is not on the path."""

from syncline.cli.main import main

main()
