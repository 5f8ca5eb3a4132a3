"""``python -m torchcaps_lab``: the command line."""

from torchcaps_lab.cli import main

raise SystemExit(main())
