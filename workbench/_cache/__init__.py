"""Files shared by successive kernels: compilations for targets that are not attached, and measured choices."""

from workbench._cache._disk_cache import DiskCache as DiskCache, cache_directory as cache_directory
