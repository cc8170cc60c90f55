"""8-bit products and what quantises for them, by every kernel there is: ``python -m benchmarks.quantised_products``."""
