//! The data that `holdfast status` prints.

use super::freshness::HeadStatus;
use super::meeting::PeersStatus;
use super::resend::ResendStatus;
use super::shared::Shared;
use crate::error::FrozenReport;
use crate::remote::Remote;
use crate::store::StoreStatus;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

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
    /// Number of callers that wait for an operation.
    pub waiting: u64,
    /// Other devices' operations that were pending in the last accepted view.
    pub pending: u64,
    /// The alarm, if the engine is frozen.
    pub frozen: Option<FrozenReport>,
    /// Whether there is a connection to the server.
    pub connected: bool,
    /// The server's answer if it refuses a connection; `None` if it accepts one or does not answer.
    pub turned_away: Option<String>,
    /// Whether the server says that this device is no longer a member: it was removed, or its key was
    /// replaced.
    pub excluded: bool,
    /// Estimates of the link to the server; `None` until there are some.
    pub link: Option<LinkStatus>,
    /// Why this device's key did not sign when it was last asked to.
    pub key_trouble: Option<String>,
    /// Signed operations made since the start.
    pub operations: u64,
    /// Number of those that took one round trip.
    pub fast: u64,
    /// Number of those that were refused, and made again in two round trips.
    pub refused: u64,
    /// Pushed views of others' operations that were accepted without an operation.
    pub pushes: u64,
    /// Operations without effect because of a conflict, which were made again.
    pub conflicts: u64,
    /// Fetches and modifications requested by callers; many share one operation.
    pub gathered: u64,
    /// Requests of the consistency protocol sent.
    pub rounds: u64,
    /// Times the state was made durable.
    pub fsyncs: u64,
    /// Tables of this device that were replaced and still take room at the server. They are dereferenced when
    /// there is a pause of a second.
    pub replaced_tables: u64,
    /// Bytes sent to the server in all.
    pub bytes_sent: u64,
    /// Bytes received from the server in all.
    pub bytes_received: u64,
    /// Number of answers given under a lease, without asking the server.
    pub leased_reads: u64,
    /// Times that leases were recalled.
    pub recalls: u64,
    /// Number of leases held: of users, of groups and of single files.
    pub leases: usize,
    /// Ranges of files locked by programs of this machine.
    pub locks: usize,
    /// Status of the newest head that witnesses co-signed, if there is a policy.
    pub head: Option<HeadStatus>,
    /// What a declared restore of the server cost this device, if one was taken up since the start.
    pub restored: Option<String>,
    /// The report of the resend after it, if there was one.
    #[serde(rename = "sent_again")]
    pub resend: Option<ResendStatus>,
    /// Status of peers, if they are met.
    pub peers: Option<PeersStatus>,
    /// Status of the block store and its caches.
    pub store: StoreStatus,
}

/// Estimates of the link to the server, from its own traffic.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkStatus {
    /// Whether the link uses QUIC (`true`) or TCP; `None` while there is no link.
    pub is_over_quic: Option<bool>,
    /// Smoothed round trip time in microseconds, including queues on the way.
    pub round_trip_us: u64,
    /// Bytes a second towards the server, if enough was sent to measure it.
    pub sent_bytes_per_second: Option<u64>,
    /// Bytes a second from the server, if enough was received to measure it.
    pub received_bytes_per_second: Option<u64>,
    /// Share of packets lost on the way, from 0 to 1.
    pub loss: f64,
}

impl LinkStatus {
    fn of(remote: &dyn Remote) -> Option<LinkStatus> {
        let known = remote.estimate()?;
        Some(LinkStatus {
            is_over_quic: remote.is_over_quic(),
            round_trip_us: known.rtt.as_micros() as u64,
            sent_bytes_per_second: known.sent_bytes_per_second,
            received_bytes_per_second: known.received_bytes_per_second,
            loss: known.loss,
        })
    }
}

/// The state of an engine now.
pub(super) fn of(shared: &Shared, locks: usize) -> Status {
    let base = shared.latest.read().base.clone();
    let counters = &shared.counters;
    let user = base.membership.users.get(&base.user);
    let (bytes_sent, bytes_received) = shared.remote.traffic();
    Status {
        address: shared.address.clone(),
        name: base.membership.name.clone(),
        device: shared.me.0,
        user: base.user.0,
        user_name: user.map_or_else(String::new, |user| user.name.clone()),
        last_operation: shared.last_operation.load(Relaxed),
        in_flight: shared.in_flight.load(Relaxed),
        waiting: shared.queue.len() as u64,
        pending: base.view.pending.iter().filter(|entry| !entry.dead).count() as u64,
        frozen: shared.frozen().map(|report| FrozenReport::clone(&report)),
        connected: shared.remote.is_connected(),
        turned_away: shared.turned_away(),
        excluded: shared.is_excluded(),
        link: LinkStatus::of(&*shared.remote),
        key_trouble: shared.key_trouble(),
        operations: counters.operations.load(Relaxed),
        fast: counters.fast.load(Relaxed),
        refused: counters.refused.load(Relaxed),
        pushes: counters.pushes.load(Relaxed),
        conflicts: counters.conflicts.load(Relaxed),
        gathered: counters.gathered.load(Relaxed),
        rounds: counters.rounds.load(Relaxed),
        fsyncs: counters.fsyncs.load(Relaxed),
        replaced_tables: counters.replaced_tables.load(Relaxed),
        bytes_sent,
        bytes_received,
        leased_reads: shared.leases.reads.load(Relaxed),
        recalls: shared.leases.recalls.load(Relaxed),
        leases: shared.leases.held(),
        locks,
        head: shared.freshness.get().map(|monitor| monitor.status()),
        restored: shared.restores.latest().map(|report| report.to_string()),
        resend: shared.resend.latest().map(Into::into),
        peers: shared.peers.get().map(|peers| peers.status(shared)),
        store: shared.store.status(),
    }
}
