"""Images, their corrupted versions, and the cache that keeps both."""

from fedctta.data.cache import Images, cache_dir
from fedctta.data.catalogue import check, datasets, load
from fedctta.data.corrupted import Domains, load_domains

__all__ = ["Domains", "Images", "cache_dir", "check", "datasets", "load", "load_domains"]
