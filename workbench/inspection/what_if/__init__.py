"""Shows shards, bytes and collectives for other shardings of the arguments, before anything runs."""

from workbench.inspection.what_if._what_if import WhatIf as WhatIf
