//! `holdfast volume mount`: file systems of one card or of several, each mount for one user.

use super::opened::{Card, Kept, open};
use super::{PATIENCE, failed, start};
use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::paths::Directories;
use crate::volume::anchor;
use crate::volume::args::{Also, Mount};
use crate::volume::places::{Places, absolute};
use crate::volume::protect::Interrupt;
use crate::volume::sessions;
use holdfast_fuse::{Manner, close_session};
use holdfast_stack::Stack;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// How often the anchors are looked at, and the sessions.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Shown {
    device: PathBuf,
    mounts: Vec<PathBuf>,
}

/// A mount that is wanted.
struct Wanted {
    card: usize,
    partition: u32,
    /// Whose, as `--session` has it.
    user: String,
    directory: PathBuf,
}

/// `holdfast volume mount`
pub fn mount(arguments: &Mount, directories: &Directories, format: output::Format) -> Outcome {
    let own =
        arguments.user.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned());
    let (cards, wanted) = wanted(arguments, &own, &Places::new(directories)?)?;
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
    let mut mounted = Mounted(Vec::new());
    let mut opened = Vec::new();
    for one in &wanted {
        let source = &kept[one.card].path;
        let volume = &disks[one.card].place.identity;
        let on = (one.card as u16, one.partition);
        let (directory, session) =
            sessions::open(arguments, source, &own, &one.user, &one.directory, on, volume)?;
        mounted.0.push(directory);
        opened.push(session);
    }
    let people = sessions::people(arguments)?;
    let name = format!("volume {}", crate::volume::secret::hex(&disks[0].place.identity));
    let stack = start(name, disks, opened, people, pages_max)?;
    if let Err(error) = stack.wait_until_ready(PATIENCE) {
        let _ = stack.stop();
        return Err(failed(error));
    }
    let shown = Shown { device: kept[0].path.clone(), mounts: mounted.0.clone() };
    format.print(&shown, |shown| {
        let mounts: Vec<String> = shown.mounts.iter().map(|mount| mount.display().to_string()).collect();
        format!("{} is mounted on {}", shown.device.display(), mounts.join(" and "))
    })?;
    let served = serve(&stack, &kept);
    drop(mounted);
    let anchors = stack.stop().map_err(failed)?;
    served?;
    kept.iter().zip(&anchors).try_for_each(|(card, now)| anchor::write(&card.remembered.anchor, now))
}

/// Opens the cards that are named, each once, and says what is to be mounted where.
fn wanted(arguments: &Mount, own: &str, places: &Places) -> Outcome<(Vec<Card>, Vec<Wanted>)> {
    let first = open(&arguments.device, &arguments.sidecar, places, arguments.freshness_unknown)?;
    let partition = first.partition(arguments.partition)?;
    let mut cards = vec![first];
    let mut wanted = Vec::new();
    for (user, directory) in [(own.to_owned(), arguments.directory.clone())].iter().chain(&arguments.sessions)
    {
        wanted.push(Wanted { card: 0, partition, user: user.clone(), directory: directory.clone() });
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
        wanted.push(Wanted { card, partition, user, directory: directory.clone() });
    }
    Ok((cards, wanted))
}

/// Waits until all is unmounted, or until it is told to end; keeps the anchors.
fn serve(stack: &Stack, cards: &[Kept]) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let mut kept: Vec<Option<_>> = vec![None; cards.len()];
    while stack.sessions() > 0 && !interrupt.is_asked() {
        for ((card, now), kept) in cards.iter().zip(stack.anchors()).zip(&mut kept) {
            if kept.as_ref() != Some(&now) {
                anchor::write(&card.remembered.anchor, &now)?;
                *kept = Some(now);
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Mount points that are to be free at the end.
struct Mounted(Vec<PathBuf>);

impl Drop for Mounted {
    fn drop(&mut self) {
        for directory in &self.0 {
            if let Err(error) = close_session(directory, Manner::Lazily) {
                tracing::warn!(directory = %directory.display(), %error, "the mount stays");
            }
        }
    }
}
