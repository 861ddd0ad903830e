//! Mounts with `--write-back`: changes are kept in a journal and sent in the background.
//!
//! All mounts of a key share the journal, since one signer sends it. What a run leaves in it, because the server was
//! away to the end or the machine went down, the next mount of the key sends.

use super::telling;
use crate::control::MountOrder;
use crate::exit::{Exit, Failure, Outcome};
use crate::salvage;
use holdfast_client::{Engine, GATHER, WriteBack, WriteBackOptions};
use holdfast_rpc::Address;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Folder of the journal in the state directory.
const JOURNAL: &str = "write-back";
/// How long an unmount waits for what is to be sent, as long as the server is there.
pub const UNMOUNT_WAIT: Duration = Duration::from_secs(3000);
/// How long pinning waits for it.
pub const PIN_WAIT: Duration = Duration::from_secs(60);
/// How often it looks whether it is.
const GLANCE: Duration = Duration::from_secs(2);
/// Bound of a journal that is only to be sent.
const LEFT_BYTES_MAX: u64 = 1 << 40;

/// Starts it if it is asked for. If it is not, but an earlier run left something to be sent, sends that first.
pub fn start(
    engine: &Arc<Engine>,
    state_dir: &Path,
    order: &MountOrder,
    timeout_s: u64,
    address: &Address,
) -> Outcome<Option<Arc<WriteBack>>> {
    let directory = state_dir.join(JOURNAL);
    let wanted = order.write_back_bytes;
    if wanted.is_none() && !is_there(&directory) {
        return Ok(None);
    }
    let back = WriteBack::over(
        Arc::clone(engine),
        WriteBackOptions {
            directory: directory.clone(),
            bytes_max: wanted.unwrap_or(LEFT_BYTES_MAX),
            salvage_dir: state_dir.join(salvage::FOLDER),
            name: name_of(engine),
            gather: GATHER,
        },
    )?;
    let told = address.to_string();
    back.on_told(Box::new(move |conflict| telling::tell_conflict(&told, conflict)));
    if wanted.is_some() {
        return Ok(Some(back));
    }
    let all = back.settle(Duration::from_secs(timeout_s))?;
    let left = back.status().edits;
    back.stop();
    match all {
        true => {
            drop(back);
            // Nothing in it is needed any more.
            let _ = std::fs::remove_dir_all(&directory);
            Ok(None)
        }
        false => Err(Failure::new(
            Exit::Unavailable,
            format!("{left} changes of an earlier mount with --write-back are not at the server yet"),
        )
        .hint("mount with --write-back: they are sent in the background, and seen meanwhile")),
    }
}

fn is_there(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_some())
}

/// What conflicts call this device: its user.
fn name_of(engine: &Engine) -> String {
    let (device, user) = engine.me();
    let name = engine.membership().users.get(&user).map(|user| user.name.clone());
    name.unwrap_or_else(|| format!("device {}", device.0))
}

/// All mounts of a key send alike.
pub fn must_fit(is_behind: bool, order: &MountOrder) -> Outcome {
    if order.write_back_bytes.is_some() && !is_behind {
        return Err(Failure::new(
            Exit::InUse,
            "this key's file system is mounted without --write-back already, which would not see what waits to be sent",
        )
        .hint("unmount it first, or mount without --write-back"));
    }
    Ok(())
}

/// Sends until all is sent, the time is up, or the server is away.
pub fn send_for_a_while(back: Option<&WriteBack>, patience: Duration) {
    let Some(back) = back else { return };
    let end = std::time::Instant::now() + patience;
    while std::time::Instant::now() < end {
        match back.settle(GLANCE) {
            Ok(true) | Err(_) => return,
            Ok(false) if back.status().away => return,
            Ok(false) => {}
        }
    }
}

/// What is left to be sent, in words.
pub fn left(back: Option<&WriteBack>) -> Option<String> {
    let status = back?.status();
    (status.edits > 0).then(|| {
        format!(
            "{} changes are not at the server yet; they are safe on this machine, and the next mount with this key sends \
             them",
            status.edits
        )
    })
}

/// Refuses what needs everything to be at the server.
pub fn must_be_sent(back: Option<&WriteBack>) -> Outcome {
    let Some(back) = back else { return Ok(()) };
    match back.settle(Duration::from_secs(60))? {
        true => Ok(()),
        false => Err(Failure::new(Exit::Unavailable, "there are changes that are not at the server yet")
            .hint("`holdfast status` shows which; try again when they are")),
    }
}
