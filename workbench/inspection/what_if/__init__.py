"""Trials of different shardings for the arguments: shards, bytes and collectives, before anything runs."""

from workbench.inspection.what_if._what_if import WhatIf as WhatIf
