"""The contract between the services: ids, plans, frames in shared memory, and small messages.

Rules of this package: it is a leaf (standard library, numpy and msgspec only); every field has one
writer; every layout has a version and a golden test; whatever cannot be read raises a `WireError`.
"""
