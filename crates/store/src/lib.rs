//! The block store: segments, index, references, garbage collection.
