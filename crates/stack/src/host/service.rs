//! Serves the components' requests to the monitor.

use super::aliases::Aliases;
use super::memory::Tmpfs;
use super::people::ProgramGate;
use super::{BUSY, refusal};
use crate::protocol::{Entering, Entry, MonitorReply, MonitorRequest, STAGE_PAGES};
use holdfast_access::Revocations;
use holdfast_components::{Refusal, Region, Reply, Request};
use holdfast_monitor::{Monitor, MonitorError, PAGE_BYTES, Reference, Write};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// The monitor, and what it needs about its callers.
pub(super) struct Service {
    pub monitor: Monitor<Tmpfs>,
    pub aliases: Arc<Aliases>,
    /// The areas through which components hand over contents.
    pub stages: HashMap<String, Arc<Region>>,
    /// The gates of sessions for programs, and the user id of each.
    pub gates: HashMap<String, (Arc<ProgramGate>, u32)>,
    /// Notified when sessions must make their kernels drop cached data.
    pub withdrawn: SyncSender<()>,
}

/// The only component that may report revocations.
const POLICY: &str = "policy-manager";

/// The name of the host's port to a component.
pub(super) fn port(component: &str) -> String {
    format!("monitor-{component}")
}

impl Service {
    pub(super) fn answer(&self, request: &Request) -> Reply {
        let mut files = Vec::new();
        let outcome = request.question().and_then(|question| self.carry_out(request, question, &mut files));
        Reply { files, ..Reply::from(outcome) }
    }

    fn carry_out(
        &self,
        request: &Request,
        question: MonitorRequest,
        files: &mut Vec<OwnedFd>,
    ) -> Result<MonitorReply, Refusal> {
        let component = request.port.strip_prefix("monitor-").ok_or(Refusal::NotPermitted)?;
        let index = request.alias.index;
        let by = self.aliases.look_up(component, index).map_err(|_| Refusal::AliasInvalid)?;
        let monitor = &self.monitor;
        let done = |done: Result<(), MonitorError>| done.map(|()| MonitorReply::Done);
        let failed = |error: holdfast_access::AccessError| Refusal::Failed(error.to_string());
        let reply = match question {
            MonitorRequest::CreateRegion { acl, pages } => {
                monitor.create_region(&by, acl, pages as usize).map(MonitorReply::Region)
            }
            MonitorRequest::Assign { region, first, blocks } => {
                monitor.assign(&by, region, first, &blocks).map(MonitorReply::References)
            }
            MonitorRequest::SetAcl { region, acl } => done(monitor.set_acl(&by, region, acl)),
            MonitorRequest::Free { page } => {
                done(monitor.free(&by, page.region, page.index..page.index.saturating_add(1)))
            }
            MonitorRequest::RemoveRegion(region) => done(monitor.remove_region(&by, region)),
            MonitorRequest::Erase { first, count } => done(monitor.erase(&by, first, count)),
            MonitorRequest::Places { first, count } => {
                monitor.places(&by, first, count).map(MonitorReply::Places)
            }
            MonitorRequest::Transfer { direction, first, pages } => {
                done(monitor.transfer(&by, direction, first, &pages))
            }
            MonitorRequest::Flush { disk } => done(monitor.flush(disk)),
            MonitorRequest::View(region) => monitor.view(&by, region).map(|view| {
                files.extend(view);
                MonitorReply::Done
            }),
            MonitorRequest::Write { at, skipped, bytes } => {
                done(monitor.write(&by, at, skipped as usize, &bytes))
            }
            MonitorRequest::WriteTogether { disk, writes } => {
                let writes = self.staged(component, writes)?;
                done(monitor.write_together(&by, disk, &writes))
            }
            MonitorRequest::Look(references) => monitor.look(&by, &references).map(MonitorReply::Look),
            MonitorRequest::Read(at) => {
                let mut page = [0; PAGE_BYTES];
                monitor.read(&by, at, &mut page).map(|()| MonitorReply::Page(page.to_vec()))
            }
            MonitorRequest::Names => {
                let (process, names, credentials) = self.judging()?.names(component).map_err(failed)?;
                return Ok(MonitorReply::Names { process, names, credentials });
            }
            MonitorRequest::Enter(entering) => {
                return self.enter(component, entering).map(MonitorReply::Entry);
            }
            MonitorRequest::Refusals => {
                let (gate, _) = self.gates.get(component).ok_or(Refusal::NotPermitted)?;
                let denials = gate.guard.denials(None).into_iter().rev().take(32);
                let refusals = denials.map(|one| (one.inode, one.process, one.program, one.reason)).collect();
                let missing = gate.guard.check_helper().err().map(|error| error.to_string());
                return Ok(MonitorReply::Refusals(refusals, missing));
            }
            MonitorRequest::Ended(bytes) if component == POLICY => {
                let endings = Revocations::decode(&bytes).map_err(failed)?;
                if self.aliases.revoked(&endings).map_err(failed)? {
                    self.lost();
                }
                return Ok(MonitorReply::Done);
            }
            MonitorRequest::Withdrawn if component == POLICY => {
                // A notice that is queued already covers this one too.
                let _ = self.withdrawn.try_send(());
                return Ok(MonitorReply::Done);
            }
            MonitorRequest::Ended(_) | MonitorRequest::Withdrawn => return Err(Refusal::NotPermitted),
            MonitorRequest::Present(bytes) => {
                self.judging()?;
                self.aliases.present(component, &bytes).map_err(failed)?;
                return Ok(MonitorReply::Done);
            }
            MonitorRequest::AddAlias(proof) => {
                return self.judging()?.prove(component, &proof).map(MonitorReply::Alias).map_err(failed);
            }
        };
        reply.map_err(refusal)
    }

    /// The aliases, if names may be proved now. Otherwise the caller must ask again: revocations of earlier
    /// runs are not known yet.
    fn judging(&self) -> Result<&Aliases, Refusal> {
        if self.aliases.is_ready() { Ok(&self.aliases) } else { Err(Refusal::Code(BUSY)) }
    }

    /// To be called when an alias became invalid: drops views and caches that rest on it. Those in this
    /// process are dropped at once.
    pub(super) fn lost(&self) {
        if let Err(error) = self.monitor.revoke_views() {
            tracing::error!(%error, "views could not be taken away; the stack ends");
            std::process::exit(1);
        }
        let _ = self.withdrawn.try_send(());
    }

    /// Decides about an open in a session for a program.
    fn enter(&self, component: &str, entering: Entering) -> Result<Entry, Refusal> {
        let (gate, uid) = self.gates.get(component).ok_or(Refusal::NotPermitted)?;
        match gate.enter(entering) {
            None => Err(Refusal::Code(BUSY)),
            Some(Err(entry)) => Ok(entry),
            Some(Ok(identity)) => {
                let manifest = gate.manifest(&identity, *uid);
                let came =
                    self.aliases.client_connected(component, identity.process, identity.started, manifest);
                came.map_err(|error| Refusal::Failed(error.to_string()))?;
                Ok(Entry::GoesOn)
            }
        }
    }

    /// Content from a component's stage: it is copied first, so that what is checked and hashed is what is
    /// written.
    fn staged(&self, component: &str, writes: Vec<Reference>) -> Result<Vec<Write>, Refusal> {
        let stage = self.stages.get(component).ok_or(Refusal::NotPermitted)?;
        if writes.len() > STAGE_PAGES {
            return Err(Refusal::Malformed);
        }
        let copy = |(page, at): (usize, Reference)| {
            let length = self.monitor.block_bytes(at.page).map_err(refusal)?;
            let mut bytes = vec![0; length];
            let offset = (page * PAGE_BYTES) as u64;
            stage.read_at(offset, &mut bytes).map_err(|error| Refusal::Failed(error.to_string()))?;
            Ok(Write { at, bytes })
        };
        writes.into_iter().enumerate().map(copy).collect()
    }
}
