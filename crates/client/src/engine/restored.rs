//! Declared restores: what a device makes of one, and how the superuser's device declares one.
//!
//! ```text
//! STATE/restores   the restores that this device has taken up, first to last: list of borsh records
//! ```

use crate::remote::{Remote, call_patiently};
use holdfast_content::{BlockKind, Membership, Restore};
use holdfast_crypto::{DigestKey, decode, encode};
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{Request, Response, ViewReply};
use holdfast_protocol::restore::remaining_log;
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file in a state directory.
const FILE: &str = "restores";

/// The effect of a restore on a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RestoreReport {
    /// Number of operations from which the file system continues.
    pub size: u64,
    /// When it was declared, nanoseconds since 1970, by the superuser's clock.
    pub declared_ns: i64,
    /// Operations that this device had seen and that are lost.
    pub lost: u64,
    /// First and last number of this device's own lost operations that were acknowledged.
    pub own: Option<(u64, u64)>,
    /// The file with the view that it had accepted, for `holdfast evidence merge`.
    pub kept: Option<PathBuf>,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server was put back to an older state, as its superuser declares: it goes on from its first {} operations.",
            self.size
        )?;
        match (self.lost, self.own) {
            (0, _) => write!(f, " Nothing that this device had seen is lost.")?,
            (lost, None) => {
                write!(f, " {lost} operations that this device had seen are lost, none of its own.")?
            }
            (lost, Some((first, last))) => {
                write!(
                    f,
                    " {lost} operations that this device had seen are lost; of its own, {first} to {last}."
                )?;
            }
        }
        if let Some(kept) = &self.kept {
            let kept = kept.display();
            write!(
                f,
                " What it had seen is kept in {kept}; lay it beside the present with `holdfast evidence merge`."
            )?;
        }
        Ok(())
    }
}

/// Called with the report of a restore when it is taken up.
pub type RestoredHook = Box<dyn Fn(&RestoreReport) + Send + Sync>;

/// Reports of the restores that were taken up since the start, and the hooks that are called with them.
#[derive(Default)]
pub(super) struct Restores(Mutex<(Option<RestoreReport>, Vec<RestoredHook>)>);

impl Restores {
    /// Stores the report of a restore that was taken up, and calls the hooks.
    pub fn taken_up(&self, report: RestoreReport) {
        let (latest, hooks) = &mut *self.0.lock();
        hooks.iter().for_each(|hook| hook(&report));
        *latest = Some(report);
    }

    /// The report of the restore that was taken up last.
    pub fn latest(&self) -> Option<RestoreReport> {
        self.0.lock().0.clone()
    }

    /// Registers a hook, and calls it with the last report, if there is one.
    pub fn on_restored(&self, hook: RestoredHook) {
        let (latest, hooks) = &mut *self.0.lock();
        if let Some(report) = latest {
            hook(report);
        }
        hooks.push(hook);
    }
}

/// Reads the restores that this device has taken up.
pub(crate) fn read(state_dir: &Path) -> io::Result<Vec<Restore>> {
    match std::fs::read(state_dir.join(FILE)) {
        Ok(bytes) => {
            decode(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Makes the list of restores durable.
pub(crate) fn save(state_dir: &Path, restores: &[Restore]) -> io::Result<()> {
    holdfast_durable::replace(&state_dir.join(FILE), &encode(&restores.to_vec()), holdfast_durable::PRIVATE)
}

/// Whether the server shows a restore, declared by the superuser, that `floor` has not taken up. Nothing else
/// of the server's answer is believed yet.
pub(in crate::engine) fn is_declared(remote: &dyn Remote, floor: &Floor, deadline: Duration) -> bool {
    let shown = look(remote, floor, 0, deadline);
    shown.is_some_and(|(_, members)| matches!(remaining_log(floor, &members.restores), Ok(Some(_))))
}

/// The server's present view, with its membership and a proof that its log extends the first `log_size`
/// operations.
pub(crate) fn look(
    remote: &dyn Remote,
    floor: &Floor,
    log_size: u64,
    deadline: Duration,
) -> Option<(ViewReply, Membership)> {
    let Ok(Response::View(reply)) = call_patiently(remote, &Request::Look { log_size }, deadline) else {
        return None;
    };
    let wanted = membership_wanted(floor, &reply.view).ok()?;
    let ask = Request::Retrieve(vec![wanted.address]);
    let Ok(Response::Blocks(found)) = call_patiently(remote, &ask, deadline) else { return None };
    let (_, found) = found.into_iter().flatten().next()?;
    let block = found.block.open(&DigestKey::WELL_KNOWN, &wanted, BlockKind::Membership).ok()?;
    Some((*reply, Membership::from_block(&block).ok()?))
}
