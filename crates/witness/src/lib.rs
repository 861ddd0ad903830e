//! A witness (`docs/internals/forks.md`): stores, for each log it knows, the head that it signed last, and signs only
//! what extends it.
//!
//! - [`state`]: the state directory. What is signed is durable before the signature leaves.
//! - [`service`]: `add-checkpoint` over HTTP.
//! - [`client`]: the other side: how a server has a witness sign.
//!
//! The decisions are `holdfast_checkpoint`'s.
#![forbid(unsafe_code)]

pub mod client;
pub mod service;
pub mod state;

pub use client::{WitnessClient, WitnessError, WitnessReply};
pub use service::{Service, ServiceError};
pub use state::{StateError, WitnessState, WitnessedLog};
