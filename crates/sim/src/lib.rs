//! Adversary, faulty networks, simulators and reference models: everything that tries to break the other crates.
//!
//! [`order`] drives the machines of `holdfast-protocol` under virtual time: an honest server behind a network
//! that loses, repeats and reorders, with crashes on both sides; and a lying server that holds every key but
//! the devices'. All randomness comes from a seed, so that a failing run can be named and repeated. [`adversary`] has the
//! real client over the real server's host in one process, in the hands of an enemy: each way to lie by each call. [`evil`]
//! puts a lying layer over the real server, for tests of the whole and for the demo. [`mirror`] is a web server in
//! hostile hands, for signed releases. [`leases`] has clients and a server with leases under virtual time. [`volume`]
//! crashes protected volumes, and attacks them. [`log_writes`] reads what a kernel recorded below a volume.
#![forbid(unsafe_code)]

pub mod adversary;
mod differences;
pub mod evil;
pub mod leases;
pub mod log_writes;
pub mod mirror;
pub mod order;
pub mod random;
pub mod volume;
