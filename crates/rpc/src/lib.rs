//! Transport: TLS with raw public keys, frames, multiplexing, time-outs.
