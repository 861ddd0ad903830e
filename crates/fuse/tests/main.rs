//! All integration tests of this crate, linked once: `cargo test -p holdfast-fuse --test fuse MODULE::`.

mod device_file;
mod volumes;
