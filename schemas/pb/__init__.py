"""Generated from `proto/` by `make proto`; this file alone is written by hand. Nothing else in `schemas` imports it: it needs grpc."""
