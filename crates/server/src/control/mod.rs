//! The control socket for operators: a Unix socket in the data directory. It has the running server carry out
//! tasks; if no server runs, the same tasks are carried out on the directory itself.
//!
//! A process that can open the socket can already read and write the data directory, so no key is needed.

mod messages;
mod operator;
mod serve;

pub use crate::block_store::ScrubSummary;
pub use crate::order::etcd::OrderStatus;
pub use messages::{CollectSummary, Outcome, Statistics, Task};
pub use operator::{ControlError, ask, perform};
pub(crate) use serve::serve;
