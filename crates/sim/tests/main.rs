//! All integration tests of this crate, linked once: `scripts/test only sim::MODULE::`.

mod adversary;
mod documents;
mod house;
mod leases;
mod order_honest;
mod order_lies;
mod volume_attacks;
mod volume_crashes;
mod volume_ext4;
mod volume_faults;
