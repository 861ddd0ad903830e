//! All integration tests of this crate, linked once: `scripts/test only fuse::MODULE::`.

mod device_file;
mod volumes;
