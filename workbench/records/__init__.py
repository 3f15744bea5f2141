"""Frozen data with units, produced by inspectors, cost models and engines, and shown by views.

There is one module per subject: `records.program`, `records.sharding`, `records.compiled` and so on.
"""

from workbench.records import (
    advice as advice,
    call_tree as call_tree,
    compiled as compiled,
    hardware as hardware,
    launch as launch,
    live as live,
    profile as profile,
    program as program,
    run as run,
    sharding as sharding,
)
from workbench.records._base import (
    VERSION as VERSION,
    Record as Record,
    deferred as deferred,
    without_collections as without_collections,
)
from workbench.records._files import write_whole as write_whole
from workbench.records._source import (
    cell_name as cell_name,
    folders_pattern as folders_pattern,
    package_of as package_of,
    read_source_line as read_source_line,
    read_source_lines as read_source_lines,
    shorten_paths as shorten_paths,
)
