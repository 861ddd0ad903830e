//! The principals for which each process may speak: its program, according to the manifest that this host
//! issues; the user of its session; the program that uses the session; and what it has proved since. Every
//! alias rests on a proof, including those that the host itself provides.

use super::people::People;
use crate::StackError;
use crate::protocol::NamedAlias;
use holdfast_access::prove::Prover;
use holdfast_access::{
    AccessError, Alias, AliasTable, Credential, Credentials, Manifest, Principal, ProcessName, Proof,
    Revocations, Scope, Statement, VerifiedCredential, check,
};
use holdfast_components::AliasPage;
use holdfast_program_identity::process;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most processes of a program that use one session at once.
const CLIENTS_MAX: usize = 1024;

/// What is fixed about a component before it runs.
#[derive(Clone)]
pub(super) struct Role {
    /// The manifest of the program that it runs.
    pub manifest: Manifest,
    /// The principal that the manifest proves: the program as a group.
    pub program: Principal,
    /// The user whose session it serves.
    pub user: Option<Principal>,
    /// The identity of the component's disk, if it has one: users' keys speak for them on that volume.
    pub volume: [u8; 16],
}

/// A process that the helper identified in an open.
struct Client {
    process: u32,
    started: u64,
    manifest: Manifest,
}

impl Client {
    fn lives(&self) -> bool {
        process::of_thread(self.process).is_ok_and(|found| found == (self.process, self.started))
    }
}

struct Process {
    name: ProcessName,
    table: AliasTable,
    page: Arc<AliasPage>,
    credentials: Credentials,
    /// The credentials that the process issued, for others who need them in proofs.
    stated: Vec<Credential>,
    /// Processes that use the session. It speaks for the first of them, under the name `client`.
    clients: Vec<Client>,
    client: Option<ProcessName>,
}

impl Process {
    fn keep(&mut self, verified: VerifiedCredential) -> Result<holdfast_access::CredentialId, AccessError> {
        let credential = verified.credential().clone();
        let id = self.credentials.keep(verified)?;
        if !self.stated.contains(&credential) {
            self.stated.push(credential);
        }
        Ok(id)
    }
}

#[derive(Default)]
struct AliasState {
    revocations: Revocations,
    /// Whether PolicyMgr has reported the revocations of earlier runs.
    is_ready: bool,
    processes: HashMap<String, Process>,
    serial: u64,
    clients: u64,
}

/// The aliases of all processes.
pub(super) struct Aliases {
    roles: HashMap<String, Role>,
    people: People,
    state: Mutex<AliasState>,
}

/// The time in seconds since 1970, for credentials that expire.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl AliasState {
    fn says(&mut self, statement: Statement) -> Result<VerifiedCredential, AccessError> {
        self.serial += 1;
        let credential =
            Credential { issuer: Principal::Machine, serial: self.serial, expires_s: None, statement };
        VerifiedCredential::spoken(&Principal::Machine, credential)
    }

    /// Removes aliases that are no longer valid from all pages. Returns whether there were any.
    fn sweep(&mut self) -> bool {
        let AliasState { revocations, processes, .. } = self;
        let mut fell = false;
        for process in processes.values_mut() {
            for index in process.table.sweep(revocations, now_s()) {
                let _ = process.page.revoke(index);
                fell = true;
            }
        }
        fell
    }
}

fn add(state: &mut AliasState, component: &str, proof: &Proof) -> Result<u16, AccessError> {
    let AliasState { revocations, processes, .. } = state;
    let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
    let proven = check(proof, &process.credentials, revocations, now_s())?;
    let index = process.table.add(proven)?;
    let alias = process.table.look_up(index, revocations, now_s())?;
    // The page has as many entries as the table.
    process.page.set(index, &alias.digest().0).map_err(|_| AccessError::TooManyAliases)?;
    Ok(index)
}

impl Aliases {
    pub(super) fn new(roles: HashMap<String, Role>, people: People) -> Aliases {
        Aliases { roles, people, state: Mutex::default() }
    }

    /// Prepares a process of a component that is about to start: alias 0 is itself, 1 its program, 2 its
    /// user, if this host states that.
    pub(super) fn started(
        &self,
        component: &str,
        name: ProcessName,
        page: &Arc<AliasPage>,
    ) -> Result<(), StackError> {
        let role = self.roles.get(component).ok_or_else(|| StackError::Component(component.to_owned()))?;
        let state = &mut *self.state.lock();
        state.revocations.started(name)?;
        let table = AliasTable::new(name, &state.revocations)?;
        page.set(0, &Principal::Process(name).digest().0)?;
        let mut process = Process {
            name,
            table,
            page: Arc::clone(page),
            credentials: Credentials::default(),
            stated: Vec::new(),
            clients: Vec::new(),
            client: None,
        };
        let manifest = role.manifest.clone();
        let program = role.program.clone();
        let runs = process.keep(state.says(Statement::Runs { process: name, manifest })?)?;
        let speaks_for =
            |delegate, principal| Statement::SpeaksFor { delegate, principal, scope: Scope::EVERYTHING };
        let mut speaks = None;
        if let Some(user) = &role.user {
            if self.people.takes_our_word(user) {
                let verified = state.says(speaks_for(Principal::Process(name), user.clone()))?;
                speaks = Some((process.keep(verified)?, user.clone()));
            }
            for (delegate, principal) in self.people.facts(&role.volume) {
                process.keep(state.says(speaks_for(delegate, principal))?)?;
            }
        }
        state.processes.insert(component.to_owned(), process);
        let mut prover = Prover::new();
        prover.constituent(runs, program);
        add(state, component, &prover.proof())?;
        if let Some((speaks, user)) = speaks {
            let mut prover = Prover::new();
            prover.namers_word(speaks, user);
            add(state, component, &prover.proof())?;
        }
        Ok(())
    }

    /// Notes that a process ended. Its statements end too, and with them what its clients proved.
    pub(super) fn ended(&self, component: &str, name: ProcessName) {
        let state = &mut *self.state.lock();
        state.revocations.stopped(name);
        if state.processes.get(component).is_some_and(|process| process.name == name)
            && let Some(process) = state.processes.remove(component)
            && let Some(client) = process.client
        {
            state.revocations.stopped(client);
        }
        state.sweep();
    }

    /// The principal for which a component's process speaks under an alias index, if the alias is valid now.
    pub(super) fn look_up(&self, component: &str, index: u16) -> Result<Alias, AccessError> {
        let AliasState { revocations, processes, .. } = &mut *self.state.lock();
        let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
        match process.table.look_up(index, revocations, now_s()) {
            Ok(alias) => Ok(alias.clone()),
            Err(error) => {
                let _ = process.page.revoke(index);
                Err(error)
            }
        }
    }

    /// Whether credentials can be checked, because the revocations of earlier runs have been loaded.
    pub(super) fn is_ready(&self) -> bool {
        self.state.lock().is_ready
    }

    /// A process's names, and the credentials with which it may prove more.
    pub(super) fn names(
        &self,
        component: &str,
    ) -> Result<(ProcessName, Vec<NamedAlias>, Vec<Credential>), AccessError> {
        let AliasState { revocations, processes, .. } = &mut *self.state.lock();
        let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
        for index in process.table.sweep(revocations, now_s()) {
            let _ = process.page.revoke(index);
        }
        let names = process.table.entries().map(|(alias, name)| NamedAlias {
            alias,
            principal: name.principal().clone(),
            scope: name.scope().clone(),
        });
        let counts = |credential: &&Credential| revocations.check(credential, now_s()).is_ok();
        let stated = process.stated.iter().filter(counts).cloned().collect();
        Ok((process.name, names.collect(), stated))
    }

    /// Stores a credential that a process presents, for its proofs.
    pub(super) fn present(&self, component: &str, bytes: &[u8]) -> Result<(), AccessError> {
        let verified = VerifiedCredential::signed(bytes)?;
        let state = &mut *self.state.lock();
        let AliasState { revocations, processes, .. } = state;
        revocations.check(verified.credential(), now_s())?;
        let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
        process.keep(verified).map(|_| ())
    }

    /// Gives a process another alias, by a proof.
    pub(super) fn prove(&self, component: &str, proof: &Proof) -> Result<u16, AccessError> {
        add(&mut self.state.lock(), component, proof)
    }

    /// Adopts the revocations that PolicyMgr stores. Returns whether any alias became invalid.
    pub(super) fn revoked(&self, endings: &Revocations) -> Result<bool, AccessError> {
        let state = &mut *self.state.lock();
        let done = state.revocations.merge(endings);
        state.is_ready = true;
        let fell = state.sweep();
        done.map(|()| fell)
    }

    /// Notes that the helper identified a process that opened a file in a session for its program. From now
    /// on the session speaks for that process, as long as it lives.
    pub(super) fn client_connected(
        &self,
        component: &str,
        number: u32,
        started: u64,
        manifest: Manifest,
    ) -> Result<(), AccessError> {
        let state = &mut *self.state.lock();
        let process = state.processes.get_mut(component).ok_or(AccessError::Ended)?;
        let is_known =
            process.clients.iter().any(|client| (client.process, client.started) == (number, started));
        if !is_known {
            if process.clients.len() >= CLIENTS_MAX {
                process.clients.retain(Client::lives);
            }
            if process.clients.len() >= CLIENTS_MAX {
                return Err(AccessError::TooManyAliases);
            }
            process.clients.push(Client { process: number, started, manifest });
        }
        if process.client.is_none() { self.speak_for_client(state, component) } else { Ok(()) }
    }

    /// Gives the session its client's name (the paper's section 4.9): by using a VFS, the client delegates to
    /// it.
    fn speak_for_client(&self, state: &mut AliasState, component: &str) -> Result<(), AccessError> {
        let role = self.roles.get(component).ok_or(AccessError::Ended)?;
        let Some(user) = role.user.clone() else { return Err(AccessError::Ended) };
        state.clients += 1;
        let number = state.clients;
        let process = state.processes.get(component).ok_or(AccessError::Ended)?;
        let Some(client) = process.clients.first() else { return Ok(()) };
        // The realm differs from the supervisor's, so the name is never a component's, whatever its number.
        let mut boot = process.name.boot;
        boot[0] = !boot[0];
        let name = ProcessName { boot, number };
        let (vfs, manifest) = (Principal::Process(process.name), client.manifest.clone());
        state.revocations.started(name)?;
        let runs = state.says(Statement::Runs { process: name, manifest })?;
        let speaker = Principal::Process(name);
        let statement =
            Statement::SpeaksFor { delegate: vfs, principal: speaker.clone(), scope: Scope::EVERYTHING };
        let delegates = Credential { issuer: speaker.clone(), serial: 1, expires_s: None, statement };
        let delegates = VerifiedCredential::spoken(&speaker, delegates)?;
        let process = state.processes.get_mut(component).ok_or(AccessError::Ended)?;
        let runs = process.credentials.keep(runs)?;
        let delegates = process.credentials.keep(delegates)?;
        process.client = Some(name);
        let mut prover = Prover::new();
        let to_client = prover.own_word(delegates, speaker);
        let is_program = prover.constituent(runs, user);
        prover.chain(to_client, is_program);
        let added = add(state, component, &prover.proof());
        if let Some(process) = state.processes.get_mut(component) {
            // The alias stays; the credentials that proved it are not needed again.
            process.credentials.forget(runs);
            process.credentials.forget(delegates);
            if added.is_err() {
                process.client = None;
                state.revocations.stopped(name);
            }
        }
        added.map(|_| ())
    }

    /// Checks which clients have ended; their sessions stop speaking for them. Returns whether any lost a
    /// name.
    pub(super) fn tend(&self) -> bool {
        let state = &mut *self.state.lock();
        let mut fell = false;
        let components: Vec<String> = state.processes.keys().cloned().collect();
        for component in components {
            let Some(process) = state.processes.get_mut(&component) else { continue };
            let Some(name) = process.client else { continue };
            let is_first = process.clients.first().is_some_and(Client::lives);
            process.clients.retain(Client::lives);
            if is_first {
                continue;
            }
            process.client = None;
            state.revocations.stopped(name);
            fell |= state.sweep();
            let others = state.processes.get(&component).is_some_and(|process| !process.clients.is_empty());
            if others && let Err(error) = self.speak_for_client(state, &component) {
                tracing::warn!(component, %error, "a session cannot speak for its program any more");
            }
        }
        fell
    }
}
