"""Exact models are run by helpers of other tests. `exact` names their folders."""

import exact

assert exact.PATHS
