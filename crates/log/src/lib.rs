//! The append-only log of segments, and the storage trait under it.
