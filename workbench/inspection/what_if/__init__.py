"""What if an argument were sharded differently? Its shards, bytes and collectives, before anything runs."""

from workbench.inspection.what_if._what_if import WhatIf as WhatIf
