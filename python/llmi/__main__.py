"""`python -m llmi` is the command `llmi`."""

import sys

from llmi._cli import main

sys.exit(main())
