//! What `holdfast status` prints.

use crate::error::FrozenReport;
use crate::store::StoreStatus;
use serde::Serialize;

/// The state of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Address of the file system.
    pub address: String,
    /// Name of the file system.
    pub name: String,
    /// This device's number.
    pub device: u32,
    /// Its user's number.
    pub user: u32,
    /// Its user's name.
    pub user_name: String,
    /// Number of the last operation that was accepted.
    pub last_operation: u64,
    /// Whether an operation is on its way.
    pub in_flight: bool,
    /// Callers that wait.
    pub waiting: u64,
    /// Other devices' operations that were pending in the last accepted view.
    pub pending: u64,
    /// The alarm, if the engine is frozen.
    pub frozen: Option<FrozenReport>,
    /// Whether the last request was answered.
    pub connected: bool,
    /// Signed operations made since the start.
    pub operations: u64,
    /// Of those: in one round trip.
    pub fast: u64,
    /// Of those: refused and made again in two.
    pub refused: u64,
    /// Of those: without effect because of a conflict, and made again.
    pub conflicts: u64,
    /// Fetches and modifications that callers asked for; many share one operation.
    pub gathered: u64,
    /// Requests of the consistency protocol sent.
    pub rounds: u64,
    /// Times the state was made durable.
    pub fsyncs: u64,
    /// Blocks and caches.
    pub store: StoreStatus,
}
