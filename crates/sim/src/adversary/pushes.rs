//! Views that a server pushes to a working client, falsified.

use super::oracle::Call;
use super::scene::{ALICE, BOB, DAVE};
use super::stage::Stage;
use super::world::{Habits, Liar};
use holdfast_content::DeviceId;
use holdfast_protocol::message::{Request, Response, ViewReply};
use holdfast_protocol::packed::Difference;
use holdfast_testing::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A way to falsify a pushed view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The true view.
    True,
    /// A view of yesterday.
    Yesterday,
    /// A view without one device's last operation.
    Hidden,
    /// A view with one device's structure altered.
    Altered,
    /// A difference from a view that the client never had.
    OtherBase,
    /// A difference that is cut short.
    Cut,
}

/// Once `armed`, pushes the falsified view each time the client asks for recalls, and counts how often.
fn pusher(
    pushed: Pushed,
    yesterday: ViewReply,
    armed: Arc<AtomicBool>,
    push_falsified: Arc<AtomicU64>,
) -> Liar {
    Arc::new(move |request, honest| {
        let Request::AwaitRecall { log_size: Some(log_size), .. } = request else {
            return Ok(honest(request));
        };
        std::thread::sleep(Duration::from_millis(5));
        if !armed.load(SeqCst) {
            return Ok(Response::Recalled(None));
        }
        let Response::View(mut reply) = honest(Request::Look { log_size }) else {
            return Ok(Response::Recalled(None));
        };
        if reply.view.log.size <= log_size || !reply.view.pending.is_empty() {
            return Ok(Response::Recalled(None));
        }
        push_falsified.fetch_add(1, SeqCst);
        let bob = DeviceId(BOB as u32);
        match pushed {
            Pushed::True | Pushed::OtherBase | Pushed::Cut => {}
            Pushed::Yesterday => *reply = yesterday.clone(),
            Pushed::Hidden => _ = reply.view.slots.insert(bob, yesterday.view.slots[&bob].clone()),
            Pushed::Altered => {
                let slot = reply.view.slots.get_mut(&bob).expect("he has a slot");
                slot.value.forecast.certificate.0[0] ^= 1;
            }
        }
        let since = if pushed == Pushed::OtherBase { log_size + 1000 } else { log_size };
        let mut difference = Difference::of(&reply, since, |_| false);
        if pushed == Pushed::Cut {
            let mut bytes = holdfast_crypto::encode(&difference);
            // Behind the two sizes is the number of bytes that follow.
            let length = (bytes.len() - 20 - 3) as u32;
            bytes.truncate(bytes.len() - 3);
            bytes[16..20].copy_from_slice(&length.to_le_bytes());
            difference = holdfast_crypto::decode(&bytes).expect("it is cut short, and says so");
        }
        Ok(Response::Difference(difference))
    })
}

/// Pushes such views to a working client; returns the alarm that froze it, if one did.
///
/// # Panics
/// If a result is wrong, or nothing was shown.
pub fn push_falsified(pushed: Pushed) -> Option<String> {
    let mut stage = Stage::set(Duration::from_secs(45));
    stage.habits[ALICE] = Habits { leases: true, ..Habits::default() };
    let (armed, lies_told) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    stage.lie(ALICE, pusher(pushed, stage.scene.shown_yesterday.clone(), armed.clone(), lies_told.clone()));
    stage.mount(ALICE).expect("she is told the truth");
    // She holds leases, so that she asks for recalls.
    stage.does(ALICE, Call::Stat("target"));
    stage.does(ALICE, Call::Write("target", super::scene::content(200)));
    armed.store(true, SeqCst);
    let mount = stage.mounts[ALICE].as_ref().expect("it is mounted").engine.clone();
    let frozen = || mount.status().frozen.map(|report| report.what);
    let accepted = || mount.status().pushes;
    let before = accepted();
    for who in [BOB, DAVE] {
        stage.does(who, Call::Stat("second"));
    }
    match pushed {
        Pushed::True => eventually("she goes on from what she is shown", || accepted() > before),
        Pushed::OtherBase | Pushed::Cut => {
            for _ in 0..3 {
                let before = lies_told.load(SeqCst);
                stage.does(BOB, Call::Stat("second"));
                eventually("she is shown that, too", || lies_told.load(SeqCst) > before);
            }
        }
        _ => {
            // What arrives while an operation of hers is on its way is passed over, and so is what follows until her
            // next one.
            for seed in 201..260 {
                if frozen().is_some() {
                    break;
                }
                let before = lies_told.load(SeqCst);
                let _ = stage.call(ALICE, Call::Write("target", super::scene::content(seed)));
                stage.does(BOB, Call::Stat("second"));
                eventually("she is shown that", || lies_told.load(SeqCst) > before || frozen().is_some());
            }
            eventually("she is alarmed", || frozen().is_some());
        }
    }
    if frozen().is_none() {
        stage.does(ALICE, Call::Write("target", super::scene::content(300)));
        stage.verdict_of_the_oracle().expect("true results");
    }
    assert!(lies_told.load(SeqCst) > 0, "nothing was shown");
    frozen()
}
