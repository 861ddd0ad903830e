//! The protocol, model-checked: every interleaving of small configurations of the real machines.
#![forbid(unsafe_code)]

pub mod configurations;
pub mod explore;
pub mod honest;
pub mod intern;
pub mod leases;
pub mod lying;
mod warrants;
pub mod world;
