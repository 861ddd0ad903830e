//! Retained past states, as a daemon lists them.

use holdfast_client::FileSystem;
use holdfast_client::engine::PastState as KeptState;
use holdfast_content::{Membership, PrincipalId};
use holdfast_failure::Outcome;
use serde::{Deserialize, Serialize};

/// Most states in one reply.
pub const PAGE: usize = 10_000;

/// A retained state, as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastState {
    /// Its name in `.snapshots`.
    pub name: String,
    /// Number of operations before it.
    pub log_size: u64,
    /// When its last operation was declared, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The user who named it; `None`: the state has no name.
    pub named_by: Option<String>,
    /// When it was named, in nanoseconds since 1970.
    pub named_ns: Option<i64>,
}

impl PastState {
    /// A state, listed under a name.
    pub fn of(name: String, state: &KeptState, members: &Membership) -> PastState {
        let author = |device| {
            let device = members.devices.get(&device)?;
            Some(members.users.get(&device.user)?.name.clone())
        };
        let snapshot = state.name.as_ref().map(|signed| &signed.value);
        PastState {
            name,
            log_size: state.point.log_size,
            time_ns: state.point.time_ns,
            named_by: snapshot.map(|snapshot| {
                author(snapshot.device).unwrap_or_else(|| PrincipalId::Device(snapshot.device).to_string())
            }),
            named_ns: snapshot.map(|snapshot| snapshot.time_ns),
        }
    }
}

/// A page of retained states, beginning with number `from`; few enough for one message.
///
/// # Errors
/// See `Engine::past_states`.
pub fn page(files: &FileSystem, from: usize) -> Outcome<Vec<PastState>> {
    let members = files.past_members();
    let entries = files.past_entries()?;
    let some = entries.into_iter().skip(from).take(PAGE);
    Ok(some.map(|entry| PastState::of(entry.name, &entry.state, &members)).collect())
}
