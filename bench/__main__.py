"""`python -m tirx_reduce.bench` is the command `tirx-reduce`."""

import sys

from .cli import main

sys.exit(main())
