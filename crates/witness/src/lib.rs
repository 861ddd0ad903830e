//! A witness (`docs/internals/forks.md`). For each log that it watches, it stores the head that it signed
//! last, and signs only heads that extend it.
//!
//! - [`state`]: the state directory. A signature leaves only when what was signed is durable.
//! - [`service`]: `add-checkpoint` over HTTP.
//! - [`client`]: the other side: how a server has a witness co-sign.
//!
//! The decisions are made in `holdfast_checkpoint`.
#![forbid(unsafe_code)]

pub mod client;
pub mod service;
pub mod state;

pub use client::{WitnessClient, WitnessError, WitnessReply};
pub use service::{Service, ServiceError};
pub use state::{StateError, WitnessState, WitnessedLog};
