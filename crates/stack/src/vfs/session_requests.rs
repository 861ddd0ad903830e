//! Requests of a session's user through the mount: owners, ACLs, credentials. They are passed to PolicyMgr
//! and the monitor under the session's names, and decided there.

use super::files::{Code, Files, errno};
use crate::asking::{ITSELF, ask_as, nonsense};
use crate::host::BUSY;
use crate::names::NameCandidate;
use crate::protocol::{
    Blocks, Entering, Entry, MonitorReply, MonitorRequest, NamedAlias, PolicyReply, PolicyRequest,
};
use crate::reader::is_denied;
use crate::session_requests::{
    CHANGES_MAX, CREDENTIALS_MAX, SessionFacts, SessionReply, SessionRequest, volume_name,
};
use holdfast_access::prove::reachable;
use holdfast_access::{
    Credential, Limit, Objects, Principal, ProcessName, Proof, Scope, Statement, VerifiedCredential,
};
use holdfast_components::Refusal;
use std::time::{Duration, Instant};

/// How long to wait until names can be proved, which is when PolicyMgr has read its table.
const PATIENCE: Duration = Duration::from_secs(120);

fn words(why: &str) -> Refusal {
    Refusal::Failed(why.to_owned())
}

impl Files {
    /// Carries out a request of the session's user.
    pub(super) fn handle(&self, request: SessionRequest) -> SessionReply {
        let is_of_names = !matches!(request, SessionRequest::Session | SessionRequest::Label(_));
        let answer = if self.configuration.is_program && is_of_names {
            Err(words(
                "this session is a program's, and nobody knows which program gives orders: use your own",
            ))
        } else {
            self.carry_out(request)
        };
        answer.unwrap_or_else(|refusal| {
            SessionReply::Refused(match refusal {
                Refusal::Failed(words) => words,
                refusal if is_denied(&refusal) => "the file is not yours".to_owned(),
                Refusal::Code(code) => std::io::Error::from_raw_os_error(code as i32).to_string(),
                refusal => refusal.to_string(),
            })
        })
    }

    fn carry_out(&self, request: SessionRequest) -> Result<SessionReply, Refusal> {
        match request {
            SessionRequest::Session => self.facts().map(SessionReply::Session),
            SessionRequest::Label(file) => self.label(file),
            SessionRequest::Change { file, changes } => {
                if changes.len() > CHANGES_MAX {
                    return Err(words("too many changes in one order"));
                }
                let disk = self.configuration.disk;
                for blocks in self.owned_runs(file)? {
                    for (principal, access) in &changes {
                        let (principal, access) = (principal.clone(), *access);
                        self.ask_in_any_name(&PolicyRequest::ChangeAcls { disk, blocks, principal, access })?;
                    }
                }
                self.settle()
            }
            SessionRequest::Give { file, to } => {
                let disk = self.configuration.disk;
                let mut is_any = false;
                for blocks in self.owned_runs(file)? {
                    let given = self.ask_in_any_name(&PolicyRequest::Give { disk, blocks, to: to.clone() });
                    match given {
                        Ok(_) => is_any = true,
                        // These blocks were accepted earlier, before something else failed.
                        Err(_) if is_any || self.look(blocks.first).is_err() => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
                if is_any { Ok(SessionReply::Done) } else { Err(Refusal::NotPermitted) }
            }
            SessionRequest::Take(file) => {
                let runs = self.owned_runs(file)?;
                let acl = self.configuration.acl.clone();
                self.accept(&runs, &acl)?;
                self.settle()
            }
            SessionRequest::Blocks(file) => {
                let runs = self.owned_runs(file)?;
                Ok(SessionReply::Blocks(runs.into_iter().map(|run| (run.first, run.count)).collect()))
            }
            SessionRequest::Present(credentials) => self.present(&credentials).map(SessionReply::Speaks),
        }
    }

    /// The blocks of a file, if it can have an owner.
    fn owned_runs(&self, file: u64) -> Result<Vec<Blocks>, Refusal> {
        let stat = self.stat(file).map_err(|code| Refusal::Code(code as u32))?;
        if stat.is_directory {
            return Err(words(
                "directories are the file system's, which everybody with a session may use; name the files in it",
            ));
        }
        let runs = self.runs(file)?;
        if runs.is_empty() {
            return Err(words("an empty file is nobody's: write to it first"));
        }
        Ok(runs)
    }

    /// Sends a request to PolicyMgr under each of the session's names, until one is permitted.
    fn ask_in_any_name(&self, question: &PolicyRequest) -> Result<PolicyReply, Refusal> {
        let own = self.ask_policy(question);
        let Err(refusal) = own else { return own };
        let others = self.proven.lock().others.clone();
        for NamedAlias { alias, principal, scope } in others {
            let introduced = ask_as(&self.policy, alias, &PolicyRequest::Introduce { principal, scope });
            if introduced.is_ok()
                && let Ok((answer, _)) = ask_as(&self.policy, alias, question)
            {
                return Ok(answer);
            }
        }
        Err(refusal)
    }

    fn look(&self, block: u64) -> Result<(Blocks, Principal, holdfast_access::Acl), Refusal> {
        let disk = self.configuration.disk;
        match self.ask_in_any_name(&PolicyRequest::Look { disk, block })? {
            PolicyReply::Label { blocks, owner, acl } => Ok((blocks, owner, acl)),
            _ => Err(nonsense("PolicyMgr")),
        }
    }

    fn label(&self, file: u64) -> Result<SessionReply, Refusal> {
        let runs = self.owned_runs(file)?;
        let (_, owner, acl) = self.look(runs[0].first)?;
        let mut is_mixed = false;
        for run in runs {
            let mut at = run.first;
            while at < run.first + run.count && !is_mixed {
                let label = self.look(at);
                is_mixed = !matches!(&label, Ok((_, one, other)) if (one, other) == (&owner, &acl));
                at = label.map_or(at + 1, |(blocks, ..)| blocks.first + blocks.count);
            }
        }
        Ok(SessionReply::Label { owner, acl, is_mixed })
    }

    /// Makes changes durable before the reply.
    fn settle(&self) -> Result<SessionReply, Refusal> {
        let question = MonitorRequest::Flush { disk: self.configuration.disk };
        match ask_as(&self.monitor, self.names.own(), &question)?.0 {
            MonitorReply::Done => Ok(SessionReply::Done),
            _ => Err(nonsense("the monitor")),
        }
    }

    fn facts(&self) -> Result<SessionFacts, Refusal> {
        let is_program = self.configuration.is_program;
        let (refused, helper_missing) = match is_program {
            false => (Vec::new(), None),
            true => match ask_as(&self.monitor, ITSELF, &MonitorRequest::Refusals)?.0 {
                MonitorReply::Refusals(refused, missing) => (refused, missing),
                _ => return Err(nonsense("the monitor")),
            },
        };
        let others = self.proven.lock().others.iter().map(|name| name.principal.clone()).collect();
        let (user, volume) = (self.configuration.user.clone(), self.configuration.volume);
        Ok(SessionFacts { user, volume, others, is_program, helper_missing, refused })
    }

    /// Whether an open in a session for a program may continue.
    pub(super) fn enter(&self, entering: Entering) -> Result<Entry, Code> {
        let started = Instant::now();
        loop {
            match ask_as(&self.monitor, ITSELF, &MonitorRequest::Enter(entering)) {
                Ok((MonitorReply::Entry(entry), _)) => {
                    if entry == Entry::GoesOn {
                        self.learn_names().map_err(errno)?;
                    }
                    return Ok(entry);
                }
                Ok(_) => return Err(libc::EIO),
                // Another open is being decided.
                Err(Refusal::Code(BUSY)) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(refusal) => return Err(errno(refusal)),
            }
        }
    }

    /// Waits until no read is in progress; returns the inodes that the kernel must forget now.
    pub(super) fn settled(&self) -> Vec<u64> {
        drop(self.reading.write());
        self.inodes.lock().all()
    }

    /// Sets up the session's names at its beginning.
    pub(super) fn begin(&self, credentials: &[Vec<u8>]) -> Result<(), Refusal> {
        self.learn_names()?;
        if !credentials.is_empty() {
            self.present(credentials)?;
        }
        self.prove(|_| true).map(drop)
    }

    /// Gets the aliases that the monitor has for this process, and the credentials for further proofs.
    fn ask_names(&self) -> Result<(ProcessName, Vec<NamedAlias>, Vec<Credential>), Refusal> {
        let started = Instant::now();
        loop {
            match ask_as(&self.monitor, ITSELF, &MonitorRequest::Names) {
                Ok((MonitorReply::Names { process, names, credentials }, _)) => {
                    return Ok((process, names, credentials));
                }
                Ok(_) => return Err(nonsense("the monitor")),
                Err(Refusal::Code(BUSY)) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Adopts the names that are valid now, and returns them.
    pub(super) fn learn_names(&self) -> Result<Vec<NamedAlias>, Refusal> {
        let (_, names, _) = self.ask_names()?;
        let is_own = |name: &&NamedAlias| {
            name.principal == self.configuration.user && *name.scope.objects() == Limit::Every
        };
        // An unrestricted name is preferred to a restricted one.
        let own = names.iter().filter(is_own).min_by_key(|name| name.scope != Scope::EVERYTHING);
        let own_alias = own.map_or(ITSELF, |own| own.alias);
        let others: Vec<NamedAlias> =
            names.iter().filter(|name| name.alias > ITSELF && name.alias != own_alias).cloned().collect();
        let is_partial = |name: &NamedAlias| *name.scope.objects() != Limit::Every;
        let tried = others
            .iter()
            .map(|name| NameCandidate { alias: name.alias, is_partial: is_partial(name) })
            .collect();
        let mut proven = self.proven.lock();
        proven.scope = own.map_or(Scope::EVERYTHING, |own| own.scope.clone());
        proven.others = others;
        self.names.set(own_alias, tried);
        Ok(names)
    }

    /// Proves what can be proved with those of the session's credentials that are `wanted`, and adopts the
    /// new names.
    fn prove(&self, wanted: impl Fn(&Credential) -> bool) -> Result<Vec<NamedAlias>, Refusal> {
        let (process, before, credentials) = self.ask_names()?;
        let base = self.proven.lock().base.clone();
        let is_ours = |credential: &Credential| {
            !matches!(credential.issuer, Principal::Key(_))
                || base.contains(&credential.id())
                || wanted(credential)
        };
        let credentials: Vec<Credential> = credentials.into_iter().filter(is_ours).collect();
        let mut refused = None;
        for (principal, proof) in reachable(&Principal::Process(process), &credentials, &[]) {
            // Of names under keys, only those for this volume can be used.
            let is_named = match &principal {
                Principal::User(_) | Principal::Group(_) => true,
                Principal::Named(named) => named.name.as_str() == volume_name(&self.configuration.volume),
                _ => false,
            };
            if is_named && !self.is_known(&before, &principal, &proof) {
                match ask_as(&self.monitor, ITSELF, &MonitorRequest::AddAlias(proof.clone())) {
                    Ok(_) => drop(self.proven.lock().proofs.insert(proof)),
                    Err(refusal) => refused = Some(refusal),
                }
            }
        }
        let names = self.learn_names()?;
        let new: Vec<NamedAlias> = names.into_iter().filter(|name| !before.contains(name)).collect();
        match refused {
            Some(refusal) if new.is_empty() => Err(refusal),
            _ => Ok(new),
        }
    }

    /// Whether the session has this name already, by this proof or without restriction.
    fn is_known(&self, names: &[NamedAlias], principal: &Principal, proof: &Proof) -> bool {
        let whole = |name: &NamedAlias| name.principal == *principal && name.scope == Scope::EVERYTHING;
        names.iter().any(whole)
            || names.iter().any(|name| name.principal == *principal)
                && self.proven.lock().proofs.contains(proof)
    }

    /// Presents credentials and uses them; those that revoke others are carried out.
    fn present(&self, credentials: &[Vec<u8>]) -> Result<Vec<(Principal, String)>, Refusal> {
        if credentials.len() > CREDENTIALS_MAX {
            return Err(words("too many credentials at once"));
        }
        let mut brought = Vec::new();
        let mut is_ending = false;
        for bytes in credentials {
            let credential =
                VerifiedCredential::signed(bytes).map_err(|error| Refusal::Failed(error.to_string()))?;
            if let Statement::Ends(_) = credential.credential().statement {
                ask_as(&self.policy, self.names.own(), &PolicyRequest::End(bytes.clone()))?;
                is_ending = true;
            } else {
                ask_as(&self.monitor, ITSELF, &MonitorRequest::Present(bytes.clone()))?;
                brought.push(credential.credential().id());
            }
        }
        if brought.is_empty() {
            self.learn_names()?;
            return Ok(Vec::new());
        }
        let new = self.prove(|credential| brought.contains(&credential.id()))?;
        if new.iter().any(|name| name.principal == self.configuration.user) {
            self.proven.lock().base.extend(brought);
        } else if new.is_empty() && !is_ending {
            return Err(words(
                "by these credentials this session speaks for nobody that it did not speak for before: are they for its \
                 user, and for this volume?",
            ));
        }
        Ok(new.into_iter().map(|name| (name.principal, restrictions(&name.scope))).collect())
    }
}

/// The restrictions of a scope, in words.
fn restrictions(scope: &Scope) -> String {
    let operations = match scope.operations() {
        Limit::Every => "everything".to_owned(),
        Limit::Only(operations) => {
            let names: Vec<String> =
                operations.iter().map(|operation| format!("{operation:?}").to_lowercase()).collect();
            names.join(", ")
        }
    };
    match scope.objects() {
        Limit::Every => operations,
        Limit::Only(ranges) => {
            let blocks: u128 =
                ranges.iter().map(|Objects { first, last }| last.saturating_sub(*first) + 1).sum();
            format!("{operations}, on {blocks} blocks")
        }
    }
}
