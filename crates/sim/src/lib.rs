//! Adversary, faulty disks, simulator and reference models.
#![forbid(unsafe_code)]

pub mod evil;
