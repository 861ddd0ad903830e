//! The resend's thread: plans what to make again and makes it, while programs' requests wait.

use super::comparison::{OwnFiles, RestoreComparison, Views};
use super::lost_work::{self, LostWork};
use super::planning::{ResendPlan, pieces, plan};
use super::watching::{GLANCE, RestoreWatch};
use super::{Resend, ResendReport, TOLD_MAX};
use crate::backend::ReadSet;
use crate::engine::queue::QueueHold;
use crate::engine::shared::Shared;
use crate::error::FsError;
use crate::evidence::now_ns;
use crate::files::{NetChange, Outcome, Record, Replay, ReplayKind, Sender, content_digest};
use crate::pauses::Pauses;
use crate::statement::Branch;
use crate::store::WriteTarget;
use crate::tree::{Base, ReadError};
use holdfast_content::{
    Block, BlockKind, BlockSink, BlockSource, Content, ContentError, Handle, Inode, InodeKind, Membership,
    PrincipalId, Reference, SourceError,
};
use holdfast_crypto::DigestKey;
use holdfast_protocol::check::membership_wanted;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between attempts that fail for the moment.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(2));
/// Attempts, not counting those when the server is away, before programs are no longer kept waiting.
const ATTEMPTS_MAX: u32 = 10;

/// Why a resend stops before its end.
enum StopReason {
    /// The engine is being stopped.
    Stopped,
    /// It goes on at the next start; the text says why.
    Later(String),
    /// Changes are not allowed now, because the newest head is too old or a peer is lost; the text says
    /// which.
    Paused(String),
}

impl Resend {
    /// Runs the resend whenever there is work, until it is stopped.
    pub fn run(&self, shared: &Arc<Shared>) {
        let (mut watch, mut is_paused) = (RestoreWatch::default(), false);
        loop {
            {
                let mut state = self.state.lock();
                if !state.is_due && !state.stop {
                    self.changed.wait_for(&mut state, GLANCE);
                }
                if state.stop {
                    return;
                }
                let is_due = std::mem::take(&mut state.is_due);
                if !is_due && (!is_paused || shared.may_operate(true).is_err()) {
                    drop(state);
                    watch.poll(shared);
                    self.readable.read_changed(shared);
                    continue;
                }
            }
            shared.queue.hold(QueueHold::All);
            let halt = self.send_all(shared).err();
            is_paused = matches!(halt, Some(StopReason::Paused(_)));
            if let Some(StopReason::Later(trouble) | StopReason::Paused(trouble)) = halt {
                let report = self.latest().unwrap_or_default();
                self.show(&ResendReport { trouble: Some(trouble), is_paused, ..report });
            }
            if !self.state.lock().is_due {
                // If the resend is paused, changes wait, so that it can go on before any of programs'
                // changes.
                shared.queue.hold(if is_paused { QueueHold::Changes } else { QueueHold::Nothing });
            }
        }
    }

    fn send_all(&self, shared: &Arc<Shared>) -> Result<(), StopReason> {
        loop {
            let failed =
                |error: std::io::Error| StopReason::Later(format!("what is to be sent again: {error}"));
            let mut works = lost_work::read(&self.state_dir).map_err(failed)?;
            let Some(next) = works.first_mut() else { return Ok(()) };
            self.send_one(shared, next, &mut |work| {
                let mut works = lost_work::read(&self.state_dir)?;
                if let Some(first) = works.first_mut().filter(|first| first.epoch == work.epoch) {
                    *first = work.clone();
                }
                lost_work::save(&self.state_dir, &works)
            })?;
            let done = next.clone();
            let mut works = lost_work::read(&self.state_dir).map_err(failed)?;
            works.retain(|work| work.epoch != done.epoch);
            lost_work::save(&self.state_dir, &works).map_err(failed)?;
            let report = ResendReport { is_over: true, ..done.report };
            self.write_report(&report);
            self.show(&report);
        }
    }

    /// Writes the report to a file beside the evidence.
    fn write_report(&self, report: &ResendReport) {
        let Some(kept) = &report.kept else { return };
        let mut text = format!("{report}\n");
        let told = report.conflicts.iter().map(|(path, what)| format!("\n{path}: {what}\n"));
        let failed = report.not_made.iter().map(|(path, why)| format!("\n{path}: not sent again: {why}\n"));
        let back = report.back.iter().map(|path| format!("\n{path}: is there again\n"));
        text.extend(told.chain(failed).chain(back));
        let path = std::path::Path::new(kept).with_extension("sent-again.txt");
        if let Err(error) = std::fs::write(&path, text) {
            tracing::warn!(%error, path = %path.display(), "what was sent again cannot be written down");
        }
    }

    fn send_one(
        &self,
        shared: &Arc<Shared>,
        work: &mut LostWork,
        keep: &mut dyn FnMut(&LostWork) -> std::io::Result<()>,
    ) -> Result<(), StopReason> {
        let keep = &mut |work: &LostWork| {
            keep(work)
                .map_err(|error| StopReason::Later(format!("what is sent again cannot be noted: {error}")))
        };
        self.show(&work.report);
        // At a start, nothing is known of the present state, so it is fetched first.
        let present = self.with_retries(shared, &mut || {
            let snapshot = shared.fetch_first(ReadSet::everything())?;
            Ok(snapshot.settled().unwrap_or_else(|| snapshot.base()))
        })?;
        if work.batches.is_none() {
            let planned = self.with_retries(shared, &mut || planned(shared, work, &present))?;
            let (planned, untold) = match planned {
                Ok(planned) => planned,
                Err(why) => {
                    work.report.fails(b"", why);
                    Default::default()
                }
            };
            let ResendPlan { batches, left, left_count, foreign, unnamed, unread } = planned;
            let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
            work.report.back = left.iter().map(text).collect();
            work.report.back_count = left_count;
            for path in &foreign {
                work.report.fails(
                    path,
                    "it belongs to somebody for whom this device may not write after the restore",
                );
            }
            for path in &unread {
                work.report.fails(path, "what this device had written there is not kept here any more");
            }
            for owner in untold {
                work.report.fails(
                    format!("files of {}", name_of(&present, owner)).as_bytes(),
                    "which of them this device had written cannot be told: their table is not kept here any more",
                );
            }
            for file in unnamed {
                work.report.fails(
                    format!("a file of {} (inode {})", name_of(&present, file.principal), file.number).as_bytes(),
                    "its name is not known here: another device had changed its directory after this one, and what \
                     was in it then is not kept here. Its data is with what is kept",
                );
            }
            work.batches = Some(batches);
            work.earlier.clear();
            keep(work)?;
        }
        while let Some(batch) = work.batches.as_ref().and_then(|batches| batches.first()).cloned() {
            let (batch, missing) = self.with_retries(shared, &mut || at_hand(shared, batch.clone()))?;
            for (path, why) in &missing {
                work.report.fails(path, why);
            }
            match self.make(shared, work.id(), &batch) {
                Ok(outcome) => note(&mut work.report, &batch, outcome),
                Err(ResendFailure::Halted(halt)) => return Err(halt),
                Err(ResendFailure::Never(error)) => {
                    let mut smaller = pieces(batch.clone());
                    if smaller.len() > 1 {
                        let rest = work.batches.iter().flatten().skip(1).cloned();
                        smaller.extend(rest);
                        let first = batch.number;
                        smaller.iter_mut().zip(first..).for_each(|(piece, number)| piece.number = number);
                        work.batches = Some(smaller);
                        keep(work)?;
                        continue;
                    }
                    let path = batch.inodes.first().map_or(&[][..], |change| &change.path);
                    work.report.fails(path, error);
                }
            }
            work.batches.iter_mut().for_each(|batches| drop(batches.remove(0)));
            keep(work)?;
            self.show(&work.report);
        }
        Ok(())
    }

    /// Repeats an attempt until it succeeds, is stopped, or has failed so often that programs should not wait
    /// any longer.
    fn with_retries<T>(
        &self,
        shared: &Arc<Shared>,
        attempt: &mut dyn FnMut() -> Result<T, FsError>,
    ) -> Result<T, StopReason> {
        let (mut pauses, mut attempts) = (PAUSES, 0);
        loop {
            if let Err(error) = shared.may_operate(true) {
                return Err(StopReason::Paused(match error {
                    FsError::Unreachable(why) => why,
                    other => other.to_string(),
                }));
            }
            let error = match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if self.is_stopped() || shared.queue.is_stopped() {
                return Err(StopReason::Stopped);
            }
            let is_away = matches!(error, FsError::Unreachable(_) | FsError::Interrupted);
            attempts += u32::from(!is_away);
            if attempts >= ATTEMPTS_MAX {
                return Err(StopReason::Later(error.to_string()));
            }
            tracing::debug!(%error, "not sent again yet");
            let mut state = self.state.lock();
            if !state.stop {
                self.changed.wait_for(&mut state, pauses.after_failure());
            }
        }
    }

    /// Makes one operation of the plan.
    fn make(&self, shared: &Arc<Shared>, id: u128, batch: &Record) -> Result<Outcome, ResendFailure> {
        let mut earlier: Option<Outcome> = None;
        let net = Arc::new(NetChange::of([batch]));
        let made = self.with_retries(shared, &mut || {
            let _held = upload(shared, batch)?;
            let base = shared.latest.read().base.clone();
            let name = base.membership.users.get(&base.user).map(|user| user.name.clone());
            let sender = Sender {
                device: shared.me,
                user: base.user,
                journal: id,
                name: name.unwrap_or_else(|| format!("device {}", shared.me.0)),
            };
            let replay = Arc::new(Mutex::new(Replay::new(net.clone(), sender, Vec::new(), ReplayKind::Lost)));
            let made = shared.modify_first(replay.clone()).and_then(|snapshot| snapshot.committed());
            let outcome = std::mem::take(&mut replay.lock().outcome);
            match made {
                // An earlier attempt whose answer did not come has made it.
                Ok(()) if outcome.was_made => Ok(Ok(earlier.take().unwrap_or(outcome))),
                Ok(()) => Ok(Ok(outcome)),
                Err(error) => {
                    if !outcome.was_made {
                        earlier = Some(outcome);
                    }
                    if is_for_now(&error) { Err(error) } else { Ok(Err(error)) }
                }
            }
        });
        match made {
            Ok(made) => made.map_err(ResendFailure::Never),
            Err(halt) => Err(ResendFailure::Halted(halt)),
        }
    }
}

/// Why an operation was not made.
enum ResendFailure {
    /// It can never be made as it is.
    Never(FsError),
    /// It may succeed later.
    Halted(StopReason),
}

fn is_for_now(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Unreachable(_)
            | FsError::Key(_)
            | FsError::NoSpace
            | FsError::Busy
            | FsError::Interrupted
            | FsError::Integrity(_)
            | FsError::Frozen(_)
            | FsError::Local { .. }
    )
}

/// A plan, with the owners (users, groups) of whose files it is unknown which this device wrote; or, in text,
/// why there can never be a plan, because something it needs is no longer stored.
type PlanOutcome = Result<(ResendPlan, Vec<PrincipalId>), String>;

/// Plans what must be made again because `present` lacks it.
///
/// # Errors
/// [`FsError::Unreachable`]: the server did not answer for a while; no result counts then.
fn planned(shared: &Arc<Shared>, work: &LostWork, present: &Base) -> Result<PlanOutcome, FsError> {
    let near: Arc<dyn BlockSource + Send + Sync> = Arc::new(shared.store.near());
    let reference = match membership_wanted(&work.floor, &work.floor.view) {
        Ok(reference) => reference,
        Err(alarm) => return Ok(Err(alarm.explain())),
    };
    let anywhere: Arc<dyn BlockSource + Send + Sync> = Arc::new(LocalThenServer(shared.clone()));
    let members = match Membership::load(&*anywhere, &reference) {
        Ok(members) => members,
        Err(ContentError::Source(SourceError::Unreachable(_, why))) => return Err(FsError::Unreachable(why)),
        Err(error) => return Ok(Err(format!("who was a member then is not known here any more: {error}"))),
    };
    let reading = |source: &Arc<dyn BlockSource + Send + Sync>| -> Vec<Branch> {
        let views = std::iter::once(&work.floor.view).chain(&work.earlier);
        views.map(|view| Branch::reading(view.clone(), members.clone(), shared.me, source.clone())).collect()
    };
    // The device's own tables may be fetched from the server, but not every directory that this device never
    // read.
    let (far, near) = (reading(&anywhere), reading(&near));
    let (was_far, was, is) = (Views::of(&far), Views::of(&near), Views::one(present));
    let sides = RestoreComparison::new(&was_far, &is, work.epoch);
    let planned = match sides.own_files() {
        Ok(OwnFiles { files, unreadable: untold }) => {
            Ok((plan(&was, &was_far, &is, &files, &sides, now_ns()), untold))
        }
        Err(ReadError::Content(ContentError::Source(SourceError::Unreachable(_, why)))) => {
            return Err(FsError::Unreachable(why));
        }
        Err(error) => Err(format!(
            "what this device had written cannot be told, as its own table is not kept any more: {error}"
        )),
    };
    match was_far.is_cut_off() || is.is_cut_off() {
        true => Err(FsError::Unreachable("the server did not answer".to_owned())),
        false => Ok(planned),
    }
}

/// Name of an owner of files, for messages.
fn name_of(base: &Base, owner: PrincipalId) -> String {
    let name = match owner {
        PrincipalId::User(id) => base.membership.users.get(&id).map(|user| &user.name),
        PrincipalId::Group(id) => base.membership.groups.get(&id).map(|group| &group.name),
        PrincipalId::Members | PrincipalId::Device(_) => None,
    };
    name.cloned().unwrap_or_else(|| owner.to_string())
}

/// Adds the outcome of a batch to the report.
fn note(report: &mut ResendReport, batch: &Record, outcome: Outcome) {
    let Outcome { conflicts: told, unplaced, .. } = outcome;
    for change in &batch.inodes {
        match &change.new {
            Some(new) if unplaced.contains(&change.handle) => {
                if new.0.kind == InodeKind::File {
                    report.fails(&change.path, "there is no place left for it");
                }
            }
            Some(_) => report.made += 1,
            None => report.removed += 1,
        }
    }
    let room = TOLD_MAX.saturating_sub(report.conflicts.len());
    report.conflicts.extend(told.into_iter().take(room).map(|told| (told.path, told.what)));
}

/// Paths of files, and why they cannot be made again.
type MissingFiles = Vec<(Vec<u8>, String)>;

/// Leaves out files whose data is no longer available, and changes that make no sense without them.
fn at_hand(shared: &Arc<Shared>, mut batch: Record) -> Result<(Record, MissingFiles), FsError> {
    let mut missing = MissingFiles::new();
    let mut without: HashSet<Handle> = HashSet::new();
    let anywhere = LocalThenServer(shared.clone());
    for change in &batch.inodes {
        let Some(new) =
            written(change.seen.as_ref().map(|kept| &*kept.0), change.new.as_ref().map(|kept| &*kept.0))
        else {
            continue;
        };
        match walk(&anywhere, &new.content, &mut |_| Ok(())) {
            Ok(()) => {}
            Err(ContentError::Source(SourceError::Unreachable(_, why))) => {
                return Err(FsError::Unreachable(why));
            }
            Err(error) => {
                missing.push((change.path.clone(), format!("its data is not kept here any more: {error}")));
                without.insert(change.handle);
            }
        }
    }
    if without.is_empty() {
        return Ok((batch, missing));
    }
    // A file that such a file would have replaced stays.
    let is_kept =
        |change: &crate::files::EntryChange| !change.new.is_some_and(|new| without.contains(&new.handle));
    let replaced: HashSet<Handle> = batch
        .entries
        .iter()
        .filter(|change| !is_kept(change))
        .filter_map(|change| Some(change.seen?.handle))
        .collect();
    batch.entries.retain(is_kept);
    batch.inodes.retain(|change| {
        let is_replaced = change.new.is_none() && replaced.contains(&change.handle);
        !(is_replaced || without.contains(&change.handle))
    });
    Ok((batch, missing))
}

/// The new inode, if it is a file's and its content differs from the one before.
fn written<'a>(seen: Option<&Inode>, new: Option<&'a Inode>) -> Option<&'a Inode> {
    let new = new.filter(|new| new.kind == InodeKind::File)?;
    let is_other = seen.is_none_or(|seen| content_digest(seen) != content_digest(new));
    is_other.then_some(new)
}

/// Uploads the data of files that are made again, as far as it is on this machine: the server has the rest.
fn upload(shared: &Arc<Shared>, batch: &Record) -> Result<Vec<crate::store::UnsentBlocks>, FsError> {
    let near = shared.store.near();
    let mut held = Vec::new();
    for change in &batch.inodes {
        let Some(new) =
            written(change.seen.as_ref().map(|kept| &*kept.0), change.new.as_ref().map(|kept| &*kept.0))
        else {
            continue;
        };
        let about = WriteTarget { handle: change.handle, path: change.path.clone(), before: Content::None };
        let mut upload = shared.store.upload_of(about);
        let walked = walk(&LocalThenServer(shared.clone()), &new.content, &mut |(reference, kind)| {
            if let Ok(block) = near.fetch(&reference, kind) {
                upload.put(Block::clone(&block));
            }
            Ok(())
        });
        walked.map_err(|error| FsError::Unreachable(error.to_string()))?;
        held.push(upload.finish_as(Some(&new.content))?);
    }
    Ok(held)
}

/// Visits all blocks of a file's content, each after the blocks that it refers to.
fn walk(
    source: &dyn BlockSource,
    content: &Content,
    visit: &mut dyn FnMut((Reference, BlockKind)) -> Result<(), ContentError>,
) -> Result<(), ContentError> {
    let Content::Extents(map) = content else { return Ok(()) };
    let nodes = Nodes { source, met: RefCell::default() };
    map.visit(&nodes, 0..u64::MAX, &mut |_, extent| {
        source.fetch(&extent.reference, BlockKind::Chunk)?;
        visit((extent.reference, BlockKind::Chunk))?;
        Ok(true)
    })?;
    nodes.met.into_inner().into_iter().rev().try_for_each(visit)
}

/// Records the nodes of a map as they are read: from the root downwards.
struct Nodes<'a> {
    source: &'a dyn BlockSource,
    met: RefCell<Vec<(Reference, BlockKind)>>,
}

impl BlockSource for Nodes<'_> {
    fn digest_key(&self) -> DigestKey {
        self.source.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        if kind != BlockKind::Chunk {
            self.met.borrow_mut().push((*reference, kind));
        }
        self.source.fetch(reference, kind)
    }
}

/// Reads blocks from this machine, or else from the server.
struct LocalThenServer(Arc<Shared>);

impl BlockSource for LocalThenServer {
    fn digest_key(&self) -> DigestKey {
        self.0.store.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        self.0.store.fetch(reference, kind)
    }
}
