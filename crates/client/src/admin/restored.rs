//! The superuser's declaration that a server was restored to an older state (`holdfast_protocol::epoch`).
//!
//! It is one operation of device 0, the first of a new epoch, signed on the state that the server shows. It
//! is not made by an engine: the superuser's device may itself have seen more than what is left, and takes up
//! the restore in the same step. If a declaration is interrupted, the same call finishes it.

use crate::engine::RestoreReport;
use crate::engine::restored::{look, read, save};
use crate::evidence::{Evidence, now_ns};
use crate::processes::{Processes, ProcessesError};
use crate::rebuild::leaves::LeafFile;
use crate::remote::{Remote, call_patiently};
use crate::state::{State, StateError, StateLog};
use crate::statement::Statement;
use holdfast_content::{Membership, MemoryBlocks, PrincipalId, Restore};
use holdfast_crypto::{DigestKey, KeyHolder, SignError};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::epoch::{self, Declaration};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::mandate::Mandate;
use holdfast_protocol::message::{AddressedBlock, Request, Response, ServerError, ViewReply};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::restore::{RemainingLog, RestoreLoss, remaining_log, take_up};
use holdfast_protocol::sequencer::settled;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, Misuse, OperationEnd, Signer};
use holdfast_protocol::structure::View;
use holdfast_rpc::{Address, RpcError, ServerProof, Transport};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What is needed to declare a restore.
pub struct DeclareConfig {
    /// The file system, and its server.
    pub address: Address,
    /// Directory of the state of the superuser's key.
    pub state_dir: PathBuf,
    /// The processes that have that key.
    pub processes: Arc<Processes>,
    /// Longest time to wait for the server.
    pub deadline: Duration,
}

/// Why a restore could not be declared.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// Another process uses the superuser's key.
    #[error("the superuser's key is in use by another process")]
    InUse,
    /// The state of the superuser's device is not here, or cannot be used.
    #[error("the state of the superuser's device in {0} cannot be used: {1}")]
    State(PathBuf, String),
    /// The holder of the superuser's key does not sign.
    #[error("the superuser's key cannot be used: {0}")]
    Key(String),
    /// The server cannot be reached.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    /// The server gave an unexpected answer.
    #[error("the server refused: {0}")]
    Refused(String),
    /// What the server shows is not an older state of this file system.
    #[error("what the server shows is no older state of this file system: {}", .0.explain())]
    NoRestore(Box<Alarm>),
}

impl From<RpcError> for DeclareError {
    fn from(error: RpcError) -> DeclareError {
        match error {
            RpcError::Server(ServerError::AwaitsDeclaration) => DeclareError::Unreachable(error.to_string()),
            RpcError::Server(_) | RpcError::Malformed(_) | RpcError::WrongServer { .. } => {
                DeclareError::Refused(error.to_string())
            }
            RpcError::Key(why) => DeclareError::Key(why.to_string()),
            other => DeclareError::Unreachable(other.to_string()),
        }
    }
}

impl From<Misuse> for DeclareError {
    fn from(error: Misuse) -> DeclareError {
        match error {
            Misuse::NotSigned(why) => DeclareError::Key(why.to_string()),
            other => DeclareError::Refused(other.to_string()),
        }
    }
}

impl From<ProcessesError> for DeclareError {
    fn from(error: ProcessesError) -> DeclareError {
        match error {
            ProcessesError::InUse => DeclareError::InUse,
            other => DeclareError::Key(other.to_string()),
        }
    }
}

/// What a declaration will mean, for confirmation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclarationPreview {
    /// Operations that are left at the server.
    pub size: u64,
    /// Operations that the superuser's device has seen.
    pub seen: u64,
}

/// Declares that the server was restored to the state that it shows, if `confirm` agrees; `None` if it does
/// not.
///
/// # Errors
/// See [`DeclareError`].
pub fn declare_restore(
    config: &DeclareConfig,
    confirm: &mut dyn FnMut(DeclarationPreview) -> bool,
) -> Result<Option<RestoreReport>, DeclareError> {
    let mut site = SuperuserDevice::open(config)?;
    let (reply, members) = site.look(0)?;
    if let Some(unfinished) = site.unfinished(&reply)? {
        // The declaration was confirmed when it was started: it only has to be finished.
        let restores = site.known_restores()?;
        let (size, declared_ns) = restores.last().map_or((0, 0), |last| (last.size, last.declared_ns));
        let next = Membership { restores, ..site.next(&members, &reply.view) };
        let blocks = match unfinished {
            InterruptedDeclaration::Unsent => site.blocks(&next)?,
            InterruptedDeclaration::Taken => Vec::new(),
        };
        let effects = site.signer.step(&*site.config.processes, Event::Restarted)?;
        site.drive(effects, blocks)?;
        return Ok(Some(RestoreReport { size, declared_ns, lost: 0, own: None, kept: None }));
    }
    site.must_await()?;
    let seen = site.signer.floor().log().size;
    if !confirm(DeclarationPreview { size: reply.view.log.size, seen }) {
        return Ok(None);
    }
    let restores = site.declare(&members, &reply.view)?;
    save(&config.state_dir, &restores).map_err(|error| site.unusable(&error))?;
    let (left, report) = site.take_up(&restores)?;
    let (_, members) = site.look(0)?;
    let next = Membership { restores, ..site.next(&members, &site.signer.floor().view) };
    let block = membership_block(&next)?;
    let tables = [(PrincipalId::Members, block.0)].into();
    let effects = site.signer.declare(&*config.processes, block.0, now_ns(), &tables)?;
    // The key has entered the new epoch and never goes back, so the leaves are truncated, too.
    if let Ok(mut leaves) = LeafFile::open(&config.state_dir)
        && let Err(error) = leaves.truncate(left.head())
    {
        tracing::warn!(%error, "leaves of the log cannot be kept");
    }
    site.drive(effects, vec![block.1])?;
    Ok(Some(report))
}

/// The state of an interrupted declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InterruptedDeclaration {
    /// The server does not have it, and still shows the state that it is of.
    Unsent,
    /// The server has it: the answer was lost.
    Taken,
}

/// The superuser's device, opened for this one operation.
struct SuperuserDevice<'a> {
    config: &'a DeclareConfig,
    log: StateLog,
    state: State,
    signer: Signer,
    remote: Arc<dyn Remote>,
}

impl<'a> SuperuserDevice<'a> {
    fn open(config: &'a DeclareConfig) -> Result<SuperuserDevice<'a>, DeclareError> {
        let unusable = |why: String| DeclareError::State(config.state_dir.clone(), why);
        let (key, file_system) = (config.processes.public(), config.address.file_system);
        if key.file_system_id() != file_system {
            return Err(DeclareError::Key("it is not that of this file system's superuser".to_owned()));
        }
        let opened = StateLog::open_dir(&config.state_dir, file_system, key);
        let (log, found) = opened.map_err(|error| match error {
            StateError::InUse => DeclareError::InUse,
            other => unusable(other.to_string()),
        })?;
        let state = found
            .ok_or_else(|| unusable("there is none; bring it from where the key was used".to_owned()))?;
        let signer = Signer::restore(&state.signer).map_err(|error| unusable(error.to_string()))?;
        let known = Mandate::adopt(&signer, key);
        config.processes.begin(&config.state_dir, &file_system, Some(&known))?;
        let minimum_sequence = signer.floor().server_keys.as_ref().map_or(0, |keys| keys.value.sequence);
        let proof = ServerProof { file_system, minimum_sequence };
        let server = config.address.servers();
        let remote = config.processes.connect(server, Some(proof), Transport::default());
        remote.wait_until_connected(config.deadline)?;
        Ok(SuperuserDevice { config, log, state, signer, remote })
    }

    fn unusable(&self, why: &dyn std::fmt::Display) -> DeclareError {
        DeclareError::State(self.config.state_dir.clone(), why.to_string())
    }

    /// Checks, before anything is signed, that the server waits for a declaration.
    fn must_await(&self) -> Result<(), DeclareError> {
        match self.remote.call(Request::Holds, self.config.deadline) {
            Err(RpcError::Server(ServerError::AwaitsDeclaration))
            | Ok(Response::Error(ServerError::AwaitsDeclaration)) => Ok(()),
            Ok(_) => Err(DeclareError::Refused("it was not started as one that was put back".to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// The server's view without what is pending in it, and its membership.
    fn look(&self, log_size: u64) -> Result<(ViewReply, Membership), DeclareError> {
        let shown = look(&*self.remote, self.signer.floor(), log_size, self.config.deadline);
        let (mut reply, members) = shown.ok_or_else(|| {
            let why =
                self.remote.trouble().map_or("it does not show its state".to_owned(), |why| why.to_string());
            DeclareError::Unreachable(why)
        })?;
        reply.view = settled(&reply.view);
        Ok((reply, members))
    }

    /// All restores that this device has recorded as declared.
    fn known_restores(&self) -> Result<Vec<Restore>, DeclareError> {
        read(&self.config.state_dir).map_err(|error| self.unusable(&error))
    }

    /// Whether there is an interrupted declaration that can be finished.
    fn unfinished(&self, reply: &ViewReply) -> Result<Option<InterruptedDeclaration>, DeclareError> {
        let (Some(certificate), Some(structure)) = self.signer.in_flight() else { return Ok(None) };
        let ours = epoch::latest(self.config.address.file_system, &self.known_restores()?);
        if self.signer.frozen().is_some()
            || certificate.new_members().is_none()
            || structure.forecast.file_system != ours
        {
            return Ok(None);
        }
        let is_taken = reply.view.slots.get(&structure.device()).is_some_and(|slot| slot.value == *structure);
        Ok(match structure.forecast.log == reply.view.log {
            _ if is_taken => Some(InterruptedDeclaration::Taken),
            true => Some(InterruptedDeclaration::Unsent),
            false => None,
        })
    }

    /// The block of this membership, if it is the one that was signed for.
    fn blocks(&self, next: &Membership) -> Result<Vec<AddressedBlock>, DeclareError> {
        let (reference, block) = membership_block(next)?;
        match self.signer.in_flight().0.and_then(|certificate| certificate.new_members()) == Some(reference) {
            true => Ok(vec![block]),
            false => {
                let why = "an earlier declaration was of another state of the server; declare once more";
                Err(DeclareError::Refused(why.to_owned()))
            }
        }
    }

    /// Has the restore to this state signed; returns all restores of the file system, including this one.
    fn declare(&self, members: &Membership, view: &View) -> Result<Vec<Restore>, DeclareError> {
        let mut known = self.known_restores()?;
        if !known.starts_with(&members.restores) {
            if !members.restores.starts_with(&known) {
                return Err(self.unusable(&"the server knows of a restore that this device did not declare"));
            }
            known.clone_from(&members.restores);
        }
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| self.unusable(&error))?;
        // A declaration that was interrupted before the key entered the new epoch had no effect.
        let mut refusal = None;
        for count in [known.len(), known.len().saturating_sub(1)] {
            let before = &known[..count];
            let file_system = self.config.address.file_system;
            let declaration = Declaration {
                file_system,
                epoch: epoch::latest(file_system, before),
                size: view.log.size,
                root: view.log.root,
                base: epoch::latest(file_system, &members.restores),
                declared_ns: now_ns(),
                nonce,
            };
            match Signed::by(declaration, &*self.config.processes) {
                Ok(Signed { value, signature }) => {
                    return Ok(before.iter().copied().chain([value.with(signature)]).collect());
                }
                Err(SignError::Refused(why)) => refusal = refusal.or(Some(why)),
                Err(other) => return Err(DeclareError::Key(other.to_string())),
            }
        }
        Err(DeclareError::Key(refusal.unwrap_or_default()))
    }

    /// Takes up the restore; the superuser's device is the first to do so.
    fn take_up(&mut self, restores: &[Restore]) -> Result<(RemainingLog, RestoreReport), DeclareError> {
        let no_restore = |alarm: Alarm| DeclareError::NoRestore(Box::new(alarm));
        let old = self.signer.floor().clone();
        let Some(left) = remaining_log(&old, restores).map_err(no_restore)? else {
            return Err(DeclareError::Refused("it has been declared already".to_owned()));
        };
        let (reply, members) = self.look(left.head().size)?;
        let (floor, lost) = take_up(&old, restores, &members, &reply).map_err(no_restore)?;
        if let RemainingLog::Beginning(head) = left
            && let Ok(leaves) = LeafFile::open(&self.config.state_dir)
            && leaves.is_past(head).unwrap_or(None) == Some(false)
        {
            return Err(no_restore(Alarm::LogNotExtended { known: old.log(), found: head }));
        }
        let last = restores.last().expect("one was declared");
        let report = self.report(&old, last, lost);
        let signer = Signer::in_epoch(floor);
        let next = Mandate::adopt(&signer, self.config.processes.public());
        self.config.processes.enter_epoch(&old.superuser, restores, &next)?;
        self.signer = signer;
        self.state.allocator = self.state.allocator.after_restore();
        self.state.frozen = None;
        Ok((left, report))
    }

    /// Saves what is lost of the view that this device had accepted.
    fn report(&self, old: &Floor, last: &Restore, lost: RestoreLoss) -> RestoreReport {
        let (size, declared_ns) = (last.size, last.declared_ns);
        let mut report = RestoreReport { size, declared_ns, lost: lost.seen, own: lost.own, kept: None };
        if lost.seen > 0 {
            let evidence = Evidence::new(self.config.state_dir.join("evidence"), old.file_system());
            evidence.set_device(old.device);
            let statement = Statement::of(old.clone(), None, &MemoryBlocks::new(DigestKey::WELL_KNOWN));
            report.kept = evidence.keep_lost(report.to_string(), statement);
        }
        report
    }

    /// The membership in force at the server, with the version that the order will give it.
    fn next(&self, members: &Membership, view: &View) -> Membership {
        let version = last_vector(view).get(PrincipalId::Members).saturating_add(1);
        Membership { version, warrant: None, ..members.clone() }
    }

    /// Carries out the signer's effects; `blocks` are sent with the declaration.
    fn drive(&mut self, effects: Vec<Effect>, blocks: Vec<AddressedBlock>) -> Result<(), DeclareError> {
        let key = &*self.config.processes;
        let mut effects = std::collections::VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Persist(now) | Effect::Note(now) => {
                    let state = State { signer: now.to_bytes(), frozen: None, ..self.state.clone() };
                    self.log.save(&state).map_err(|error| self.unusable(&error))?;
                }
                Effect::Send(request) => {
                    let Request::Fast { certificate, structure, .. } = *request else {
                        return Err(DeclareError::Refused("another operation is under way".to_owned()));
                    };
                    let blocks = blocks.clone();
                    let request = Request::DeclareRestore { certificate, structure, blocks };
                    match call_patiently(&*self.remote, &request, self.config.deadline)? {
                        Response::Committed(receipt) => {
                            effects.extend(self.signer.step(key, Event::Committed(receipt))?);
                        }
                        other => return Err(crate::store::unexpected("DeclareRestore", &other).into()),
                    }
                }
                Effect::Finished(OperationEnd::Committed(_)) => return Ok(()),
                Effect::Alarm(alarm) => return Err(DeclareError::Refused(alarm.explain())),
                _ => {}
            }
        }
        Err(DeclareError::Refused("it did not say that the restore is declared".to_owned()))
    }
}

fn membership_block(
    members: &Membership,
) -> Result<(holdfast_content::Reference, AddressedBlock), DeclareError> {
    let block = members.to_block(&DigestKey::WELL_KNOWN).map_err(|error| {
        DeclareError::Refused(format!("the membership cannot hold another restore: {error}"))
    })?;
    let reference = block.reference();
    Ok((reference, AddressedBlock { address: reference.address, block: block.to_stored() }))
}
