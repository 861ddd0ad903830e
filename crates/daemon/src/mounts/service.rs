//! The process that serves the mounts of one key. It holds the only signer, mounts and unmounts, answers the
//! control socket, and ends with its last mount or on a signal.

use super::conflicts;
use super::guard::{self, MountGuard};
use super::past::{self, PastState};
use super::pinning::Pinner;
use super::requests::MountRequest;
use super::rules::RulesReport;
use super::settings::{MountSettings, PeerSettings, WitnessSettings};
use super::status::{FileTraffic, MountDaemonStatus, MountStatus};
use super::write_back::{self, SALVAGE_FOLDER};
use super::{ending, notify, owners, reclaim};
use crate::background::{self, Job};
use crate::control::{self, Encoded, Reply};
use crate::keys::Key;
use crate::membership::MembershipRequest;
use crate::watch::Watcher;
use crate::{cache, limits, logging, time};
use holdfast_client::files::{Ino, OwnerMap};
use holdfast_client::reader::VerifiedView;
use holdfast_client::store::account::{self, Traffic};
use holdfast_client::{Engine, EngineConfig, FileSystem, FsError, MountOptions, ReclaimReport, WriteBack};
use holdfast_content::Handle;
use holdfast_crypto::DigestKey;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::{Session, UnmountMode};
use holdfast_program_identity::guard::Guard;
use holdfast_program_identity::rules::RuleSet;
use holdfast_rpc::Address;
use rustix::process::{getegid, geteuid};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Folder of unpublished bytes in the state directory; each mount has a numbered folder in it.
const SPOOL: &str = "spool";
/// Number of files whose traffic `status` lists.
const FILES_TOLD: usize = 64;
/// After it was asked to end, the process stays for so long if programs still use a mount.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

/// Serves until the end, logging to the key's log file; reports to the waiting command whether it started.
pub fn run_in_background(job: Job) -> Outcome {
    let log = background::log_path(&job.state_dir);
    let started = logging::to_file(&log)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))
        .and_then(|()| Service::start(job, true));
    let heard = background::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    match started {
        Ok(service) => {
            if !heard {
                // The command that asked for the mount has ended (Ctrl-C), so nobody expects it.
                service.hurry();
            }
            service.serve()
        }
        // The failure was reported to the waiting command; nobody reads this exit code.
        Err(_) => Ok(()),
    }
}

/// Serves until the end, in the foreground.
pub fn run_in_foreground(job: Job) -> Outcome {
    Service::start(job, false)?.serve()
}

/// Serves the mounts of one key.
pub struct Service {
    engine: Arc<Engine>,
    /// Stores changes and sends them in the background.
    back: Option<Arc<WriteBack>>,
    /// Settings for witnesses, if they are used.
    witnesses: Option<WitnessSettings>,
    /// Settings for meeting other clients, if they are met.
    peers: Option<PeerSettings>,
    address: Address,
    state_dir: PathBuf,
    started_ns: i64,
    watcher: Watcher,
    pinner: Arc<Pinner>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the process is to end: what cannot be published at once is stored for salvage.
    hurried: AtomicBool,
}

struct Active {
    session: Arc<Session>,
    files: Arc<FileSystem>,
    settings: MountSettings,
    guard: Arc<Guard>,
    spool: u32,
}

/// The error of a mount request while the process is ending.
pub const ENDING: &str = "the process that serves this key is just ending; try again";

#[derive(Default)]
struct State {
    /// Mounts by a number that is never reused: a directory may be mounted on again while its previous mount
    /// is ending.
    mounts: BTreeMap<u64, Active>,
    /// How many mounts there have been.
    begun: u64,
    /// Whether the process is about to end, because nothing is mounted any more.
    ended: bool,
}

impl State {
    /// The number of the mount on a directory: the latest, because an earlier one may still be ending.
    fn at(&self, directory: &Path) -> Option<u64> {
        let on = |(_, active): &(&u64, &Active)| active.settings.directory == directory;
        self.mounts.iter().rev().find(on).map(|(number, _)| *number)
    }
}

impl Service {
    fn start(job: Job, in_background: bool) -> Outcome<Arc<Service>> {
        limits::raise_open_files();
        let address: Address = job.url.parse()?;
        if let Key::Kept(key) = &job.key {
            tracing::info!(socket = %key.socket().display(), "an SSH agent keeps the key");
        }
        let processes = job.key.into_processes()?;
        let mut config = EngineConfig::with_processes(address.clone(), &processes, job.state_dir.clone());
        config.cache_dir = Some(job.cache_dir.clone());
        config.cache_bytes = job.cache_bytes;
        config.deadline = Duration::from_secs(job.timeout);
        config.hard = job.hard;
        config.transport = job.transport;
        config.leases = job.leases;
        config.starts_away = job.settings.write_back_bytes.is_some();
        config.sends_again = job.sends_again;
        config.acknowledge_alarm = job.acknowledge_alarm;
        config.transfer.mode = job.transfer;
        config.on_trouble = Some(Arc::new(move |error| match in_background {
            true => background::notice(&error.to_string()),
            false => tracing::warn!("{error}"),
        }));
        config.witnesses = job.settings.witnesses.as_ref().map(WitnessSettings::policy).transpose()?;
        config.peers = job.settings.peers.as_ref().map(PeerSettings::policy);
        cache::remember(&job.cache_dir, &address.to_string(), &DigestKey::WELL_KNOWN);
        let waiting = in_background.then(background::ends_with_command);
        let engine = Engine::start(config)?;
        let timeout = Duration::from_secs(job.timeout);
        let back = write_back::start(&engine, &job.state_dir, &job.settings, timeout, job.hard, &address)?;
        drop(waiting);
        let service = Arc::new(Service {
            pinner: Pinner::start(&engine, job.cache_dir.clone()),
            engine,
            back,
            witnesses: job.settings.witnesses.clone(),
            peers: job.settings.peers.clone(),
            address,
            state_dir: job.state_dir.clone(),
            started_ns: time::now_ns(),
            watcher: Watcher::start(),
            state: Mutex::default(),
            changed: Condvar::new(),
            hurried: AtomicBool::new(false),
        });
        let told = service.address.to_string();
        service.engine.on_notice(Box::new(move |notice| notify::tell(&told, notice)));
        let told = service.address.to_string();
        service.engine.on_stale(Box::new(move |is_stale, words| notify::tell_stale(&told, is_stale, words)));
        let told = service.address.to_string();
        service.engine.on_restored(Box::new(move |report| notify::tell_restored(&told, &report.to_string())));
        let told = service.address.to_string();
        service.engine.on_resend(Box::new(move |report| notify::tell_sent_again(&told, report)));
        let told = service.address.to_string();
        service.engine.on_peer(Box::new(move |is_lost, words| notify::tell_peer(&told, is_lost, words)));
        service.rescue_leftovers();
        service.mount(&job.settings)?;
        let answering = Arc::downgrade(&service);
        let listening = control::listen(&job.state_dir, move |request| match answering.upgrade() {
            Some(service) => service.handle(request),
            None => Reply::refusal(Failure::new(Exit::Unavailable, "the process is ending")),
        });
        if let Err(error) = listening {
            service.unmount_all();
            return Err(Failure::new(Exit::System, format!("the control socket cannot be made: {error}")));
        }
        reclaim::start(Arc::downgrade(&service));
        Ok(service)
    }

    /// Serves until no mount is left or a signal ends it.
    fn serve(self: Arc<Service>) -> Outcome {
        ending::on_signals(Arc::downgrade(&self))?;
        let mut state = self.lock();
        while !state.mounts.is_empty() {
            let hurried = self.hurried.load(Ordering::SeqCst);
            let wait = if hurried { LEAVE_WAIT } else { Duration::from_secs(3600) };
            let (next, timeout) =
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if hurried && timeout.timed_out() {
                tracing::warn!("programs still use the mount; they lose it now");
                break;
            }
        }
        state.ended = true;
        drop(state);
        control::close(&self.state_dir);
        if let Some(back) = &self.back {
            write_back::end(back, &self.state_dir);
        }
        self.engine.stop();
        tracing::info!("ended");
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(self: &Arc<Service>, request: MountRequest) -> Reply<MountRequest> {
        use MountRequest as Request;
        match request {
            Request::Mount(request) => Reply::to(&request, self.mount(&request.0)),
            Request::Unmount(request) => Reply::to(&request, self.umount(&request.directory, request.lazy)),
            Request::Status(request) => Reply::to(&request, self.status()),
            Request::Salvage(request) => Reply::to(&request, self.salvage()),
            Request::ListConflicts(request) => {
                let versions = self.files(false).and_then(|files| Ok(files.conflict_copies()?));
                Reply::to(&request, versions.map(|all| conflicts::page(all, request.after.as_ref())))
            }
            Request::ReadConflict(request) => {
                let part = self
                    .files(false)
                    .and_then(|files| Ok(files.read_conflict_copy(&request.id, request.offset)?.into()));
                Reply::to(&request, part)
            }
            Request::DropConflicts(request) => Reply::to(
                &request,
                self.files(true).and_then(|files| Ok(files.drop_conflict_copies(&request.ids)?)),
            ),
            Request::ListPastStates(request) => {
                let files = self.mount_at(&request.directory);
                Reply::to(&request, files.and_then(|(files, _)| past::page(&files, request.from)))
            }
            Request::TakeSnapshot(request) => {
                Reply::to(&request, self.snapshot(&request.directory, &request.name))
            }
            Request::EndSnapshot(request) => {
                let ended = self
                    .mount_at(&request.directory)
                    .and_then(|_| Ok(self.engine.end_name(&request.name)?));
                Reply::to(&request, ended)
            }
            Request::ListVersions(request) => {
                let files = self.mount_at(&request.directory);
                Reply::to(&request, files.and_then(|(files, _)| Ok(files.past_versions(&request.path)?)))
            }
            Request::Reclaim(request) => {
                Reply::to(&request, self.reclaim(request.dry_run, u64::MAX, &|_| false))
            }
            Request::Pin(request) => {
                // Changes that were made here just before are sent first, so that they are pinned too.
                write_back::send_for_a_while(&self.engine, self.back.as_deref(), write_back::PIN_WAIT);
                Reply::to(&request, self.pinner.pin(request.path.clone()))
            }
            Request::Unpin(request) => Reply::to(&request, self.pinner.unpin(&request.path)),
            Request::ListPins(request) => Reply::to(&request, Ok(self.pinner.list())),
            Request::ShowRules(request) => Reply::to(&request, self.rules(&request.directory, request.inode)),
            Request::SetRules(request) => {
                let rules = request.rules.clone();
                Reply::to(&request, self.set_rules(&request.directory, request.inode, rules))
            }
            Request::GiveUpLostPeers(request) => Reply::to(&request, self.give_up_lost_peers()),
            Request::ShowMembership(request) => Reply::to(&request, request.answer(&self.engine)),
            Request::ShowUsage(request) => Reply::to(&request, request.answer(&self.engine)),
            Request::Administer(request) => Reply::to(&request, request.answer(&self.engine)),
            Request::PrepareChange(request) => Reply::to(&request, request.answer(&self.engine)),
            Request::SubmitChange(request) => Reply::to(&request, request.answer(&self.engine)),
            Request::FetchView(request) => {
                let view =
                    write_back::must_be_sent(self.back.as_deref()).and_then(|()| view_of(&self.engine));
                Reply::to(&request, view.map(|view| Encoded::of(&view)))
            }
            Request::FetchFloor(request) => {
                // Changes that were made here just before are part of the floor only once they are signed.
                write_back::send_for_a_while(&self.engine, self.back.as_deref(), write_back::FLOOR_WAIT);
                let _ = self.engine.flush_commits();
                Reply::to(&request, Ok(Encoded::of(&*self.engine.floor())))
            }
            Request::FetchFloorNow(request) => Reply::to(&request, Ok(Encoded::of(&*self.engine.floor()))),
        }
    }

    /// Stops waiting for lost peers. Returns their device numbers.
    fn give_up_lost_peers(&self) -> Outcome<Vec<u32>> {
        let given_up = self.engine.go_on_without_lost().ok_or_else(|| {
            Failure::new(Exit::Usage, "this mount does not meet peers").hint("mount it with --peers")
        })?;
        Ok(given_up.into_iter().map(|device| device.0).collect())
    }

    /// The files of any mount; if `to_write`, preferably of one that is writable.
    fn files(&self, to_write: bool) -> Outcome<Arc<FileSystem>> {
        let state = self.lock();
        let may = |active: &&Active| !to_write || !active.settings.read_only;
        let found = state.mounts.values().find(may).or_else(|| state.mounts.values().next());
        let ending = || Failure::new(Exit::Unavailable, "the process is ending");
        found.map(|active| Arc::clone(&active.files)).ok_or_else(ending)
    }

    /// The mount of this process on a directory.
    fn mount_at(&self, directory: &Path) -> Outcome<(Arc<FileSystem>, Arc<Guard>)> {
        let state = self.lock();
        let found = state.at(directory).and_then(|number| state.mounts.get(&number));
        found.map(|active| (Arc::clone(&active.files), Arc::clone(&active.guard))).ok_or_else(|| {
            Failure::new(Exit::MountPoint, format!("{}: not mounted by this process", directory.display()))
        })
    }

    /// Gives the present state a name. It includes everything that was changed here before.
    fn snapshot(&self, directory: &Path, name: &str) -> Outcome<PastState> {
        self.mount_at(directory)?;
        write_back::send_for_a_while(&self.engine, self.back.as_deref(), write_back::PIN_WAIT);
        write_back::must_be_sent(self.back.as_deref())?;
        let state = self.engine.name_state(name)?;
        Ok(PastState::of(name.to_owned(), &state, &self.engine.membership()))
    }

    /// A file's rules for programs, and the programs that were refused lately.
    fn rules(&self, directory: &Path, inode: u64) -> Outcome<RulesReport> {
        let (files, guard) = self.mount_at(directory)?;
        Ok(RulesReport {
            rules: files.rules(Ino(inode))?,
            helper_missing: guard.check_helper().err().map(|error| error.to_string()),
            served_by: geteuid().as_raw(),
            denials: guard.denials(Some(inode)).into_iter().map(Into::into).collect(),
        })
    }

    fn set_rules(&self, directory: &Path, inode: u64, rules: Option<Vec<u8>>) -> Outcome {
        if let Some(rules) = &rules {
            RuleSet::decode(rules).map_err(|error| Failure::new(Exit::Usage, error))?;
        }
        Ok(self.mount_at(directory)?.0.set_rules(Ino(inode), rules)?)
    }

    /// Removes files that no directory names, except those that a mount here has open and those that
    /// `is_spared` holds for.
    pub fn reclaim(
        &self,
        dry_run: bool,
        inodes_max: u64,
        is_spared: &dyn Fn(Handle) -> bool,
    ) -> Outcome<Option<ReclaimReport>> {
        let files: Vec<_> = self.lock().mounts.values().map(|active| Arc::clone(&active.files)).collect();
        let in_use = |file| is_spared(file) || files.iter().any(|files| files.is_in_use(file));
        let found = self.engine.reclaim(dry_run, inodes_max, &in_use)?;
        if let Some(found) = &found
            && !found.files.is_empty()
            && !dry_run
        {
            tracing::info!(files = found.files.len(), "removed files that no directory names");
        }
        Ok(found)
    }

    fn options(&self, spool: u32, read_only: bool, owners: OwnerMap) -> MountOptions {
        MountOptions {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            owners,
            spool_dir: self.state_dir.join(SPOOL).join(spool.to_string()),
            salvage_dir: self.state_dir.join(SALVAGE_FOLDER),
            read_only,
        }
    }

    /// Copies what an earlier process left unpublished when it died to the salvage folder.
    fn rescue_leftovers(&self) {
        let Ok(spools) = std::fs::read_dir(self.state_dir.join(SPOOL)) else { return };
        for spool in spools.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let rescued =
                FileSystem::new(Arc::clone(&self.engine), self.options(spool, true, OwnerMap::default()))
                    .and_then(|files| files.save_unsaved("the process ended before they could be published"));
            if let Err(error) = rescued {
                tracing::warn!(%error, spool, "what an earlier run left cannot be rescued yet; it stays there");
            }
        }
    }

    fn mount(self: &Arc<Service>, settings: &MountSettings) -> Outcome {
        let mut state = self.lock();
        if state.ended || self.hurried.load(Ordering::SeqCst) {
            return Err(Failure::new(Exit::InUse, ENDING));
        }
        write_back::must_fit(self.back.as_deref(), settings)?;
        if settings.witnesses.is_some() && settings.witnesses != self.witnesses {
            return Err(Failure::new(
                Exit::InUse,
                "this key's file system is mounted with other witnesses, or without any",
            )
            .hint("unmount it first: all mounts of a key believe the same witnesses"));
        }
        if settings.peers.is_some() && settings.peers != self.peers {
            return Err(Failure::new(
                Exit::InUse,
                "this key's file system is mounted without meeting peers, or with other options for that",
            )
            .hint("unmount it first: all mounts of a key meet the same peers"));
        }
        let owners = owners::of(&self.engine.membership(), settings)?;
        let taken: Vec<u32> = state.mounts.values().map(|active| active.spool).collect();
        let spool = (0..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX);
        let options = self.options(spool, settings.read_only, owners);
        let files = match &self.back {
            Some(back) => FileSystem::behind(&self.engine, Arc::clone(back), options)?,
            None => FileSystem::new(Arc::clone(&self.engine), options)?,
        };
        let guard = guard::new(settings);
        files.set_guard(Arc::new(MountGuard(Arc::clone(&guard))));
        let number = state.begun;
        state.begun += 1;
        let service = Arc::downgrade(self);
        let ended = move || {
            if let Some(service) = service.upgrade() {
                service.mount_ended(number);
            }
        };
        let options = holdfast_fuse::Options {
            source: self.address.to_string(),
            allow_other: settings.allow_other,
            read_only: settings.read_only,
            no_exec: settings.no_exec,
            local_locks: settings.local_locks,
        };
        self.watcher.mounted(&settings.directory);
        let session = holdfast_fuse::mount(Arc::clone(&files), &settings.directory, &options, ended)
            .inspect_err(|_| self.watcher.unmounted(&settings.directory))?;
        tracing::info!(directory = %settings.directory.display(), address = %self.address, "mounted");
        let active = Active { session: Arc::new(session), files, settings: settings.clone(), guard, spool };
        state.mounts.insert(number, active);
        Ok(())
    }

    /// Publishes what is unsaved, then unmounts. Returns what is left to be sent, in words. If not `lazy`, a
    /// mount whose files cannot be published stays.
    fn umount(&self, directory: &Path, lazy: bool) -> Outcome<Option<String>> {
        let found = {
            let state = self.lock();
            let active = state.at(directory).and_then(|number| state.mounts.get(&number));
            active.map(|active| (Arc::clone(&active.session), Arc::clone(&active.files)))
        };
        let Some((session, files)) = found else {
            let message = format!("{}: not mounted by this process", directory.display());
            return Err(Failure::new(Exit::MountPoint, message));
        };
        if lazy {
            session.unmount(UnmountMode::Lazily)?;
            return Ok(write_back::left(self.back.as_deref()));
        }
        if let Some((path, error)) = files.publish_all().into_iter().next() {
            // After an alarm nothing can be published; nor can it by a device that is no longer a member.
            let why = match &error {
                FsError::Frozen(_) => "the mount was unmounted after an alarm",
                _ if self.engine.is_excluded() => "this device was removed, or its key was replaced",
                _ => return Err(unsaved(directory, &path, &error)),
            };
            files.save_unsaved(why)?;
        }
        write_back::send_for_a_while(&self.engine, self.back.as_deref(), write_back::UNMOUNT_WAIT);
        session.unmount(UnmountMode::Gently)?;
        session.wait();
        Ok(write_back::left(self.back.as_deref()))
    }

    /// Called by a mount's own thread when the mount has ended.
    fn mount_ended(&self, number: u64) {
        // Waits for the lock until `mount` has registered the mount.
        let ended = {
            let state = self.lock();
            let active = state.mounts.get(&number);
            active.map(|active| (Arc::clone(&active.files), active.settings.directory.clone()))
        };
        let Some((files, directory)) = ended else { return };
        let lost = self.hurried.load(Ordering::SeqCst) || !files.publish_all().is_empty();
        if lost {
            ending::keep(&files);
        }
        tracing::info!(directory = %directory.display(), "unmounted");
        self.watcher.unmounted(&directory);
        self.lock().mounts.remove(&number);
        self.changed.notify_all();
    }

    /// Ends the process: publishes for a while, stores the rest for salvage, and detaches all mounts.
    pub fn hurry(&self) {
        tracing::info!("told to end");
        let files: Vec<_> = self.lock().mounts.values().map(|active| Arc::clone(&active.files)).collect();
        for files in &files {
            ending::publish_for_a_while(files);
        }
        write_back::send_for_a_while(&self.engine, self.back.as_deref(), ending::PUBLISH_WAIT);
        self.hurried.store(true, Ordering::SeqCst);
        self.unmount_all();
        self.changed.notify_all();
    }

    fn unmount_all(&self) {
        let sessions: Vec<_> =
            self.lock().mounts.values().map(|active| Arc::clone(&active.session)).collect();
        for session in sessions {
            if let Err(error) = session.unmount(UnmountMode::Lazily) {
                tracing::warn!(%error, "unmounting");
            }
        }
    }

    fn salvage(&self) -> Outcome<usize> {
        let files: Vec<_> = self.lock().mounts.values().map(|active| Arc::clone(&active.files)).collect();
        let mut saved = 0;
        for files in files {
            saved +=
                files.save_unsaved("asked for by `holdfast salvage`")?.map_or(0, |saved| saved.files.len());
        }
        Ok(saved)
    }

    /// The files that caused most traffic, and one last entry for all others.
    fn traffic(&self, mount: Option<&Active>) -> Vec<FileTraffic> {
        let (top, others) = self.engine.store().account().top(FILES_TOLD);
        let name = |ino| match (ino, mount) {
            (0, _) => "(directories and tables)".to_owned(),
            (account::PINNING, _) => "(what is pinned)".to_owned(),
            (ino, Some(mount)) => mount.files.display_path(Ino(ino)),
            (ino, None) => format!("(inode {ino})"),
        };
        let told = top.into_iter().map(|(ino, traffic)| FileTraffic { path: name(ino), traffic });
        let others = FileTraffic { path: "(all others)".to_owned(), traffic: others };
        told.chain(Some(others).filter(|others| others.traffic != Traffic::default())).collect()
    }

    fn status(&self) -> Outcome<MountDaemonStatus> {
        let state = self.lock();
        let mounts = state.mounts.values().map(|active| MountStatus {
            directory: active.settings.directory.clone(),
            read_only: active.settings.read_only,
            allow_other: active.settings.allow_other,
            unsaved: active.files.unpublished(),
        });
        Ok(MountDaemonStatus {
            address: self.address.to_string(),
            process: std::process::id(),
            started_ns: self.started_ns,
            mounts: mounts.collect(),
            write_back: self.back.as_ref().map(|back| back.status()),
            state_dir: self.state_dir.clone(),
            engine: serde_json::to_value(self.engine.status())
                .map_err(|error| Failure::new(Exit::Internal, error))?,
            files: self.traffic(state.mounts.values().next()),
        })
    }
}

fn unsaved(directory: &Path, path: &[u8], error: &FsError) -> Failure {
    let what = match path {
        [] => "the last operations are not confirmed by the server".to_owned(),
        path => format!("{} cannot be saved to the server", String::from_utf8_lossy(path)),
    };
    let message = format!("{}: stays mounted, because {what}: {error}", directory.display());
    Failure { code: Failure::from(error.clone()).code, message, hint: None }
        .hint("umount --lazy unmounts nevertheless; what is unsaved is then kept for `holdfast salvage`")
}

/// A view of a running engine in which no operation is pending.
///
/// # Errors
/// The server cannot be reached, or other devices write without a pause.
pub fn view_of(engine: &Engine) -> Outcome<VerifiedView> {
    engine.flush_commits()?;
    let base = engine.at_rest()?.ok_or_else(|| {
        Failure::new(Exit::InUse, "there is always some operation of others under way").hint("try again")
    })?;
    Ok(VerifiedView::of(&base))
}
