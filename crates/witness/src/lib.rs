//! A witness (`docs/internals/forks.md`): keeps, for each log it knows, the head it signed last, and signs only what extends it.
//!
//! - [`book`]: the state directory. What is signed is durable before the signature leaves.
//! - [`service`]: `add-checkpoint` over HTTP.
//! - [`ask`]: the other side: how a server has a witness sign.
//!
//! The decisions are `holdfast_checkpoint`'s.
#![forbid(unsafe_code)]

pub mod ask;
pub mod book;
pub mod service;

pub use ask::{AskError, Asked, Asker};
pub use book::{Book, BookError, LogShown};
pub use service::{Service, ServiceError};
