"""Train, search and track models on a Detlab cluster, with the names that Determined gave these things."""

__version__ = "0.38.1"  # the Determined release whose API this package offers
__detlab_version__ = "0.1.0"
