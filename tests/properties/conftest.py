"""Exact models are run by helpers of other tests, whose folders `exact` names."""

import exact

assert exact.PATHS
