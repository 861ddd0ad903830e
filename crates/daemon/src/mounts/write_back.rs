//! Changes that are stored in a journal and sent in the background: with `--write-back` for as long as
//! needed, otherwise for a moment while no other device uses the file system.
//!
//! All mounts of a key share the journal, because one signer sends it. What a run leaves in it, because the
//! server was away or the machine crashed, is sent by the key's next mount.

use super::notify;
use crate::mounts::settings::MountSettings;
use holdfast_client::{Engine, GATHER, WriteBack, WriteBackOptions};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Address;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Folder of the journal, in the state directory.
const JOURNAL: &str = "write-back";
/// Folder of what could not be sent (`holdfast salvage`), in the state directory.
pub const SALVAGE_FOLDER: &str = "salvage";
/// How long an unmount waits for changes to be sent, as long as the server answers.
pub const UNMOUNT_WAIT: Duration = Duration::from_secs(3000);
/// How long pinning waits for changes to be sent.
pub const PIN_WAIT: Duration = Duration::from_secs(60);
/// How long a request for the floor waits for changes to be sent.
pub const FLOOR_WAIT: Duration = Duration::from_secs(10);
/// How long sending is tried while every attempt fails, for example because the key is locked.
const FAILING_MAX: Duration = Duration::from_secs(10);
/// The interval at which the progress of sending is checked.
const GLANCE: Duration = Duration::from_secs(2);
/// Most bytes of a journal that is only to be sent.
const LEFT_BYTES_MAX: u64 = 1 << 40;
/// Most bytes of a journal that only gathers.
const GATHERED_BYTES_MAX: u64 = 512 << 20;
/// Stands for waiting without limit.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Starts the write-back. What an earlier run left is sent first, unless `--write-back` continues with it.
pub fn start(
    engine: &Arc<Engine>,
    state_dir: &Path,
    settings: &MountSettings,
    timeout: Duration,
    is_hard: bool,
    address: &Address,
) -> Outcome<Option<Arc<WriteBack>>> {
    let directory = state_dir.join(JOURNAL);
    let wanted = settings.write_back_bytes;
    let gathers = wanted.is_none() && settings.gather;
    let is_left = is_there(&directory);
    if wanted.is_none() && !gathers && !is_left {
        return Ok(None);
    }
    let started = WriteBack::over(
        Arc::clone(engine),
        WriteBackOptions {
            directory: directory.clone(),
            bytes_max: wanted.unwrap_or(if gathers { GATHERED_BYTES_MAX } else { LEFT_BYTES_MAX }),
            salvage_dir: state_dir.join(SALVAGE_FOLDER),
            name: name_of(engine),
            gather: GATHER,
            gathers,
            patience: if is_hard { FOREVER } else { timeout },
        },
    );
    let back = match started {
        Ok(back) => back,
        // Changes are not gathered then, which is only slower.
        Err(error) if gathers && !is_left => {
            tracing::warn!(%error, "changes cannot be gathered on this machine; each goes to the server at once");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let told = address.to_string();
    back.on_conflict(Box::new(move |conflict| notify::tell_conflict(&told, conflict)));
    if wanted.is_some() {
        return Ok(Some(back));
    }
    let all = back.settle(timeout)?;
    if all && gathers {
        return Ok(Some(back));
    }
    let left = back.status().edits;
    back.stop();
    match all {
        true => {
            drop(back);
            // Everything in the folder has been sent.
            let _ = std::fs::remove_dir_all(&directory);
            Ok(None)
        }
        false => Err(Failure::new(
            Exit::Unavailable,
            format!("{left} changes of an earlier mount are not at the server yet"),
        )
        .hint("mount with --write-back: they are sent in the background, and seen meanwhile")),
    }
}

/// Stops the write-back. A journal that only gathered is removed once all of it is sent.
pub fn end(back: &WriteBack, state_dir: &Path) {
    back.stop();
    let status = back.status();
    if status.gathers && status.edits == 0 {
        let _ = std::fs::remove_dir_all(state_dir.join(JOURNAL));
    }
}

fn is_there(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_some())
}

/// The name of this device in conflicts: its user's.
fn name_of(engine: &Engine) -> String {
    let (device, user) = engine.me();
    let name = engine.membership().users.get(&user).map(|user| user.name.clone());
    name.unwrap_or_else(|| format!("device {}", device.0))
}

/// Refuses settings that differ from those of the key's other mounts, because all share one journal.
pub fn must_fit(back: Option<&WriteBack>, settings: &MountSettings) -> Outcome {
    let is_behind = back.is_some_and(|back| !back.status().gathers);
    if settings.write_back_bytes.is_some() && !is_behind {
        return Err(Failure::new(
            Exit::InUse,
            "this key's file system is mounted without --write-back already, which would not see what waits to be sent",
        )
        .hint("unmount it first, or mount without --write-back"));
    }
    Ok(())
}

/// Sends until everything is sent, the time is up, the server is away, or every attempt fails.
pub fn send_for_a_while(engine: &Engine, back: Option<&WriteBack>, patience: Duration) {
    let Some(back) = back else { return };
    let end = Instant::now() + patience;
    let (mut left, mut since) = (u64::MAX, Instant::now());
    while Instant::now() < end {
        match back.settle(GLANCE) {
            Ok(true) | Err(_) => return,
            Ok(false) => {}
        }
        let status = back.status();
        let is_failing = status.trouble.is_some() || engine.status().key_trouble.is_some();
        if status.edits < left || !is_failing {
            (left, since) = (status.edits, Instant::now());
        }
        if status.away || since.elapsed() > FAILING_MAX {
            return;
        }
    }
}

/// What is left to be sent, in words; `None` if nothing.
pub fn left(back: Option<&WriteBack>) -> Option<String> {
    let status = back?.status();
    (status.edits > 0).then(|| {
        let why = status.trouble.map_or_else(String::new, |trouble| format!(" ({trouble})"));
        format!(
            "{} changes are not at the server yet{why}; they are safe on this machine, and the next mount with this key sends \
             them",
            status.edits
        )
    })
}

/// Waits until everything is at the server, or refuses.
pub fn must_be_sent(back: Option<&WriteBack>) -> Outcome {
    let Some(back) = back else { return Ok(()) };
    match back.settle(Duration::from_secs(60))? {
        true => Ok(()),
        false => Err(Failure::new(Exit::Unavailable, "there are changes that are not at the server yet")
            .hint("`holdfast status` shows which; try again when they are")),
    }
}
