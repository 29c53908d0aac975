"""`python -m overt VERB ...` and `torchrun -m overt VERB ...`: the same as the command `overt`."""

import sys

from overt.cli import main

sys.exit(main())
