//! All integration tests of this crate, linked once: `scripts/test only content::MODULE::`.

mod file_model;
mod golden;
mod groups;
mod live_model;
mod map_hostile;
mod map_model;
mod objects;
mod reading;
mod untrusted_bytes;
