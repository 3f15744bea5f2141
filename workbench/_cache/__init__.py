"""Files kept between kernels: compilations for absent targets, and measured choices."""

from workbench._cache._disk_cache import DiskCache as DiskCache, cache_directory as cache_directory
