"""`python -m tirx_reduce.bench` is the command `tirx-reduce`."""

import sys

from tirx_reduce.bench.cli import main

sys.exit(main())
