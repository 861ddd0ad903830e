//! Notices restores while a mount is idle. An idle mount sends no requests, so it would not encounter a
//! restore, and its lost operations would stay lost. So after the server was away, this module fetches one
//! view, to check whether the server still has what it showed before, and whether this device is still a
//! member.

use crate::engine::queue::{QueuedEvent, SignerEvent};
use crate::engine::restored::is_declared;
use crate::engine::shared::Shared;
use holdfast_content::PrincipalId;
use holdfast_protocol::message::{Request, Response};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How often this module checks whether there is a connection.
pub const GLANCE: Duration = Duration::from_secs(2);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between requests.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest pause between requests while there is a connection.
const PAUSE_CONNECTED_MAX: Duration = Duration::from_secs(10);

/// Decides when the server is asked whether it was restored.
#[derive(Default)]
pub struct RestoreWatch {
    /// Set while the server has not been asked since it was away: when to ask, and the pause after that.
    due: Option<(Instant, Duration)>,
    /// Number of connections made up to the last poll: a new one means that the server may have been away in
    /// between.
    connects: u64,
}

impl RestoreWatch {
    /// Asks the server for its view if it is time to.
    pub fn poll(&mut self, shared: &Shared) {
        let is_connected = shared.remote.is_connected();
        let is_disturbed = shared.resend.is_disturbed.swap(false, Relaxed);
        let connects = shared.remote.connects();
        let is_another = std::mem::replace(&mut self.connects, connects) != connects;
        if self.due.is_none() && (is_disturbed || is_another || !is_connected) {
            self.due = Some((Instant::now(), GLANCE));
        }
        let due = self.due.filter(|(at, _)| Instant::now() >= *at);
        let Some((_, pause)) = due else { return };
        let (floor, members) = {
            let latest = shared.latest.read();
            (latest.floor.clone(), latest.base.view.handle(PrincipalId::Members).map(|(_, handle)| handle))
        };
        let answer = shared.remote.call(Request::Look { log_size: 0 }, PATIENCE);
        shared.looked(&answer);
        let (is_older, is_other) = match answer {
            Ok(Response::View(reply)) => {
                let told = reply.view.handle(PrincipalId::Members).map(|(_, handle)| handle);
                (reply.view.log.size < floor.log().size, told != members)
            }
            _ => {
                let most = if is_connected { PAUSE_CONNECTED_MAX } else { PAUSE_MAX };
                self.due = Some((Instant::now() + pause, (pause * 2).min(most)));
                return;
            }
        };
        self.due = None;
        if (is_older || is_other) && is_declared(&*shared.remote, &floor, PATIENCE) {
            shared.queue.push_event(QueuedEvent { event: SignerEvent::Look, done: channel().0 });
        } else if is_older {
            // A restore may be about to be declared. If it is not, the next operation raises the alarm.
            self.due = Some((Instant::now() + pause, (pause * 2).min(PAUSE_CONNECTED_MAX)));
        }
    }
}
