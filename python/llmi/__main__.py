"""`python -m llmi` is the command `llmi`."""

import sys

from llmi.cli.commands import main

sys.exit(main())
