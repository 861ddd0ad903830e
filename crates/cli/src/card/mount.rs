//! `holdfast volume mount`: mounts file systems of one or several cards, each mount for one user.

use super::opened::{Card, RetainedCard, open};
use super::sessions;
use super::starting::{PATIENCE, failed, start};
use crate::output;
use crate::volume::args::{Also, Mount};
use crate::volume::interrupt::Interrupt;
use holdfast_components::weaker;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::anchor;
use holdfast_daemon::volumes::folders::{VolumeFolders, absolute};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::{self, MountError, UnmountMode};
use holdfast_stack::Stack;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// How often the anchors and the sessions are checked.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct MountOutput {
    device: PathBuf,
    mounts: Vec<PathBuf>,
}

/// A mount that the user asks for.
struct MountRequest {
    card: usize,
    partition: u32,
    /// The session's user, as in `--session`.
    user: String,
    directory: PathBuf,
}

/// `holdfast volume mount`
pub fn mount(arguments: &Mount, directories: &Directories, format: output::Format) -> Outcome {
    let own =
        arguments.user.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned());
    let (cards, wanted) = wanted(arguments, &own, &VolumeFolders::new(directories)?)?;
    let mut checked = Vec::new();
    for (at, card) in cards.into_iter().enumerate() {
        let used: Vec<u32> = wanted.iter().filter(|one| one.card == at).map(|one| one.partition).collect();
        checked.push(card.check(&used)?);
    }
    let tables: u64 = checked.iter().map(|card| card.place.table.1).sum();
    let pages_max = arguments.cache_mib as usize * 256 + tables as usize + 128;
    let (mut disks, mut kept) = (Vec::new(), Vec::new());
    for card in checked {
        let (plan, one) = card.into_plan()?;
        disks.push(plan);
        kept.push(one);
    }
    let mut mounted = Mounts(Vec::new());
    let mut opened = Vec::new();
    for one in &wanted {
        let source = &kept[one.card].path;
        let volume = &disks[one.card].layout.identity;
        let on = (one.card as u16, one.partition);
        let (directory, session) =
            sessions::open(arguments, source, &own, &one.user, &one.directory, on, volume)?;
        mounted.0.push(Some(OneMount::new(directory, &one.user)?));
        opened.push(session);
    }
    let people = sessions::people(arguments)?;
    let name = format!("volume {}", holdfast_daemon::volumes::secret::hex(&disks[0].layout.identity));
    let stack = start(name, disks, opened, people, pages_max)?;
    if let Err(error) = stack.wait_until_ready(PATIENCE) {
        let _ = stack.stop();
        return Err(failed(error));
    }
    let mut ended = mounted.close_ended(&stack);
    let mounts: Vec<PathBuf> = mounted.0.iter().flatten().map(|mount| mount.directory.clone()).collect();
    if mounts.is_empty() && !ended.is_empty() {
        let _ = stack.stop();
        return Err(Failure::new(Exit::Unavailable, ended.remove(0)));
    }
    ended.iter().for_each(|text| tell(text));
    let shown = MountOutput { device: kept[0].path.clone(), mounts };
    format.print(&shown, |shown| {
        let mounts: Vec<String> = shown.mounts.iter().map(|mount| mount.display().to_string()).collect();
        format!("{} is mounted on {}", shown.device.display(), mounts.join(" and "))
    })?;
    if let Some(words) = weaker(&stack.supervisor().listing().lacking()) {
        tell(&format!("note: {words}"));
    }
    let served = serve(&stack, &mut mounted, &kept);
    drop(mounted);
    let anchors = stack.stop().map_err(failed)?;
    served?;
    kept.iter().zip(&anchors).try_for_each(|(card, now)| anchor::write(&card.remembered.anchor, now))
}

/// Opens the named cards, each once, and lists what is to be mounted where.
fn wanted(arguments: &Mount, own: &str, places: &VolumeFolders) -> Outcome<(Vec<Card>, Vec<MountRequest>)> {
    let first = open(&arguments.device, &arguments.sidecar, places, arguments.freshness_unknown)?;
    let partition = first.partition(arguments.partition)?;
    let mut cards = vec![first];
    let mut wanted = Vec::new();
    for (user, directory) in [(own.to_owned(), arguments.directory.clone())].iter().chain(&arguments.sessions)
    {
        wanted.push(MountRequest { card: 0, partition, user: user.clone(), directory: directory.clone() });
    }
    for Also { directory, device, sidecar, partition, user } in &arguments.also {
        let device = device.as_ref().unwrap_or(&arguments.device);
        let known = cards.iter().position(|card| card.path == absolute(device));
        let card = match (known, sidecar) {
            (Some(card), None) => card,
            (Some(card), Some(sidecar)) if absolute(sidecar) == absolute(&cards[card].sidecar) => card,
            (Some(card), Some(_)) => {
                let message =
                    format!("{}: has one sidecar, {}", device.display(), cards[card].sidecar.display());
                return Err(Failure::new(Exit::Usage, message));
            }
            (None, None) => {
                let message = format!("{}: its sidecar is not named", device.display());
                return Err(Failure::new(Exit::Usage, message).hint("say sidecar=DIR behind device=DEVICE"));
            }
            (None, Some(sidecar)) => {
                cards.push(open(device, sidecar, places, arguments.freshness_unknown)?);
                cards.len() - 1
            }
        };
        let partition = cards[card].partition(*partition)?;
        let user = user.clone().unwrap_or_else(|| own.to_owned());
        wanted.push(MountRequest { card, partition, user, directory: directory.clone() });
    }
    Ok((cards, wanted))
}

/// Serves until everything is unmounted or a signal ends it, and updates the anchors.
fn serve(stack: &Stack, mounts: &mut Mounts, cards: &[RetainedCard]) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let mut kept: Vec<Option<_>> = vec![None; cards.len()];
    loop {
        mounts.close_ended(stack).iter().for_each(|text| tell(text));
        if mounts.0.iter().all(Option::is_none) || interrupt.is_asked() {
            return Ok(());
        }
        for ((card, now), kept) in cards.iter().zip(stack.anchors()).zip(&mut kept) {
            if kept.as_ref() != Some(&now) {
                anchor::write(&card.remembered.anchor, &now)?;
                *kept = Some(now);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "holdfast: {text}");
}

/// A mount of one session.
struct OneMount {
    directory: PathBuf,
    /// The session's user, as in `--session`.
    user: String,
    /// The id of the mount: something else may be mounted there after it has ended.
    id: Option<u64>,
}

impl OneMount {
    fn new(directory: PathBuf, user: &str) -> Outcome<OneMount> {
        let id = mountpoint::mounted_at(&directory)?.map(|mount| mount.id);
        Ok(OneMount { directory, user: user.to_owned(), id })
    }

    /// Unmounts the directory, unless that was done.
    fn close(&self) {
        let Some(id) = self.id else { return };
        match mountpoint::unmount_only(&self.directory, id, UnmountMode::Lazily) {
            Ok(()) | Err(MountError::NotMounted(_)) => {}
            Err(error) => tracing::warn!(directory = %self.directory.display(), %error, "the mount stays"),
        }
    }
}

/// Mounts by the number of their session; `None` for those that have ended. The others are unmounted at the
/// end.
struct Mounts(Vec<Option<OneMount>>);

impl Mounts {
    /// Unmounts the directories of sessions that have ended. Returns messages about those that were not
    /// unmounted by a user.
    fn close_ended(&mut self, stack: &Stack) -> Vec<String> {
        let mut told = Vec::new();
        for (number, mount) in self.0.iter_mut().enumerate() {
            let Some(why) = mount.as_ref().and_then(|_| stack.ended(number)) else { continue };
            let Some(mount) = mount.take() else { continue };
            mount.close();
            if !why.is_empty() {
                let OneMount { directory, user, .. } = mount;
                told.push(format!(
                    "the mount of {user} at {} has ended: {why}; what was acknowledged is on the disk, and the other \
                     mounts go on",
                    directory.display()
                ));
            }
        }
        told
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(OneMount::close);
    }
}
