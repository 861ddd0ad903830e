//! In whose name each process may speak: what it runs, by the manifest that this host issues for it; the user of its
//! session; and what it proved since. Every alias rests on a proof, also those that the host itself brings.

use crate::StackError;
use holdfast_access::prove::Prover;
use holdfast_access::{
    AccessError, Alias, AliasTable, Credential, Credentials, Heard, Manifest, Principal, ProcessName, Proof,
    Scope, Standing, Statement, check,
};
use holdfast_components::AliasPage;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A component, before it runs.
#[derive(Clone)]
pub(super) struct Role {
    /// What it runs.
    pub manifest: Manifest,
    /// Who that makes it: a group that the manifest satisfies.
    pub program: Principal,
    /// The user whose session it serves.
    pub user: Option<Principal>,
}

/// Endings that one component may bring, over all its processes.
const ENDINGS_MAX: u32 = 256;

struct Process {
    name: ProcessName,
    table: AliasTable,
    page: Arc<AliasPage>,
    credentials: Credentials,
}

#[derive(Default)]
struct State {
    standing: Standing,
    processes: HashMap<String, Process>,
    serial: u64,
    /// How many endings each component has brought.
    endings: HashMap<String, u32>,
}

/// All processes' names.
pub(super) struct Aliases {
    roles: HashMap<String, Role>,
    state: Mutex<State>,
}

/// Now, for credentials that end by themselves.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl State {
    fn says(&mut self, statement: Statement) -> Result<Heard, AccessError> {
        self.serial += 1;
        let credential =
            Credential { issuer: Principal::Machine, serial: self.serial, expires_s: None, statement };
        Heard::spoken(&Principal::Machine, credential)
    }
}

fn add(state: &mut State, component: &str, proof: &Proof) -> Result<u16, AccessError> {
    let State { standing, processes, .. } = state;
    let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
    let proven = check(proof, &process.credentials, standing, now_s())?;
    let index = process.table.add(proven)?;
    let alias = process.table.look_up(index, standing, now_s())?;
    // The page has as many entries as the table.
    process.page.set(index, &alias.digest().0).map_err(|_| AccessError::TooManyAliases)?;
    Ok(index)
}

impl Aliases {
    pub(super) fn new(roles: HashMap<String, Role>) -> Aliases {
        Aliases { roles, state: Mutex::default() }
    }

    /// A process of a component is about to begin: alias 0 is itself, 1 its program, 2 its user.
    pub(super) fn started(
        &self,
        component: &str,
        name: ProcessName,
        page: &Arc<AliasPage>,
    ) -> Result<(), StackError> {
        let role = self.roles.get(component).ok_or_else(|| StackError::Component(component.to_owned()))?;
        let state = &mut *self.state.lock();
        state.standing.started(name)?;
        let table = AliasTable::new(name, &state.standing)?;
        page.set(0, &Principal::Process(name).digest().0)?;
        let mut credentials = Credentials::default();
        let manifest = role.manifest.clone();
        let program = role.program.clone();
        let runs = credentials.keep(state.says(Statement::Runs { process: name, manifest })?)?;
        let speaks = match &role.user {
            None => None,
            Some(user) => {
                let delegate = Principal::Process(name);
                let statement =
                    Statement::SpeaksFor { delegate, principal: user.clone(), scope: Scope::EVERYTHING };
                Some((credentials.keep(state.says(statement)?)?, user.clone()))
            }
        };
        let process = Process { name, table, page: Arc::clone(page), credentials };
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

    /// A process ended, and all it said.
    pub(super) fn ended(&self, component: &str, name: ProcessName) {
        let mut state = self.state.lock();
        state.standing.stopped(name);
        if state.processes.get(component).is_some_and(|process| process.name == name) {
            state.processes.remove(component);
        }
        self.sweep(&mut state);
    }

    /// What no longer stands goes from all pages.
    fn sweep(&self, state: &mut State) {
        let State { standing, processes, .. } = state;
        for process in processes.values_mut() {
            for index in process.table.sweep(standing, now_s()) {
                let _ = process.page.revoke(index);
            }
        }
    }

    /// In whose name a component's process speaks under an index, if that stands now.
    pub(super) fn look_up(&self, component: &str, index: u16) -> Result<Alias, AccessError> {
        let State { standing, processes, .. } = &mut *self.state.lock();
        let process = processes.get_mut(component).ok_or(AccessError::Ended)?;
        match process.table.look_up(index, standing, now_s()) {
            Ok(alias) => Ok(alias.clone()),
            Err(error) => {
                let _ = process.page.revoke(index);
                Err(error)
            }
        }
    }

    /// A credential that a process presents: kept for its proofs, or, if it ends others, carried out.
    pub(super) fn present(&self, component: &str, bytes: &[u8]) -> Result<(), AccessError> {
        let heard = Heard::signed(bytes)?;
        let mut state = self.state.lock();
        if let Statement::Ends(_) = heard.credential().statement {
            // They are kept for good, and anybody can make keys: one component must not leave no room for the others'.
            let brought = state.endings.entry(component.to_owned()).or_default();
            if *brought >= ENDINGS_MAX {
                return Err(AccessError::TooManyIssuers);
            }
            *brought += 1;
            state.standing.hear(&heard)?;
            self.sweep(&mut state);
            return Ok(());
        }
        let process = state.processes.get_mut(component).ok_or(AccessError::Ended)?;
        process.credentials.keep(heard).map(|_| ())
    }

    /// Another name for a process, by a proof.
    pub(super) fn prove(&self, component: &str, proof: &Proof) -> Result<u16, AccessError> {
        add(&mut self.state.lock(), component, proof)
    }
}
