//! The adversary: real clients (engine and inode API) on real server hosts in one process. Between them is an adversary
//! that has the server's key, its disk and its clock, and in some rows a member's key too.
//!
//! [`verdict`] plays each [`behaviour`] against each call of a victim and gives each pair a named verdict, which is the
//! table of `docs/proof.md`; [`chaos`] combines them at random, by seed. The [`oracle`] knows everything that any
//! client was ever told, and demands that one order explains it on every branch of the fork tree.

pub mod behaviour;
pub mod calls;
pub mod chaos;
pub mod forge;
pub mod oracle;
pub mod peers;
pub mod pushes;
pub mod restored;
pub mod scene;
pub mod stage;
pub mod verdict;
mod warrants;
pub mod witness;
pub mod world;
