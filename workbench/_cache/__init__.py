"""What is kept on disk between kernels: compilations for targets and choices that were measured."""

from workbench._cache._disk_cache import DiskCache as DiskCache, cache_directory as cache_directory
