"""Images, their corrupted versions, and the cache that keeps both."""

from fedctta.data.cache import Images, cache_dir
from fedctta.data.catalogue import check, datasets, load
from fedctta.data.converters import from_datasets
from fedctta.data.corrupted import load_domains
from fedctta.data.domains import Domains

__all__ = ["Domains", "Images", "cache_dir", "check", "datasets", "from_datasets", "load", "load_domains"]
