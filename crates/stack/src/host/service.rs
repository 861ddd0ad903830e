//! What components ask of the monitor, answered.

use super::aliases::Aliases;
use super::memory::Tmpfs;
use super::people::ProgramGate;
use super::{BUSY, refusal};
use crate::protocol::{AskMonitor, Entering, Entry, MonitorSays, STAGE_PAGES};
use holdfast_access::Standing;
use holdfast_components::{Answer, Refusal, Region, Request};
use holdfast_monitor::{Monitor, MonitorError, PAGE_BYTES, Reference, Write};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// The monitor, and what it needs to know of who asks.
pub(super) struct Service {
    pub monitor: Monitor<Tmpfs>,
    pub aliases: Arc<Aliases>,
    /// The areas through which components hand over contents.
    pub stages: HashMap<String, Arc<Region>>,
    /// The gates of sessions for programs, and the user id of each.
    pub gates: HashMap<String, (Arc<ProgramGate>, u32)>,
    /// Told when sessions are to have their kernels forget.
    pub withdrawn: SyncSender<()>,
}

/// The component whose word on revocations counts.
const POLICY: &str = "policy-manager";

/// Ports of the host are called after the component at their other end.
pub(super) fn port(component: &str) -> String {
    format!("monitor-{component}")
}

impl Service {
    pub(super) fn answer(&self, request: &Request) -> Answer {
        let mut files = Vec::new();
        let outcome = request.question().and_then(|question| self.carry_out(request, question, &mut files));
        Answer { files, ..Answer::from(outcome) }
    }

    fn carry_out(
        &self,
        request: &Request,
        question: AskMonitor,
        files: &mut Vec<OwnedFd>,
    ) -> Result<MonitorSays, Refusal> {
        let component = request.port.strip_prefix("monitor-").ok_or(Refusal::NotPermitted)?;
        let index = request.alias.index;
        let by = self.aliases.look_up(component, index).map_err(|_| Refusal::AliasInvalid)?;
        let monitor = &self.monitor;
        let done = |done: Result<(), MonitorError>| done.map(|()| MonitorSays::Done);
        let failed = |error: holdfast_access::AccessError| Refusal::Failed(error.to_string());
        let said = match question {
            AskMonitor::CreateRegion { acl, pages } => {
                monitor.create_region(&by, acl, pages as usize).map(MonitorSays::Region)
            }
            AskMonitor::Assign { region, first, blocks } => {
                monitor.assign(&by, region, first, &blocks).map(MonitorSays::References)
            }
            AskMonitor::SetAcl { region, acl } => done(monitor.set_acl(&by, region, acl)),
            AskMonitor::Free { page } => {
                done(monitor.free(&by, page.region, page.index..page.index.saturating_add(1)))
            }
            AskMonitor::RemoveRegion(region) => done(monitor.remove_region(&by, region)),
            AskMonitor::Erase { first, count } => done(monitor.erase(&by, first, count)),
            AskMonitor::Places { first, count } => monitor.places(&by, first, count).map(MonitorSays::Places),
            AskMonitor::Transfer { direction, first, pages } => {
                done(monitor.transfer(&by, direction, first, &pages))
            }
            AskMonitor::Flush { disk } => done(monitor.flush(disk)),
            AskMonitor::View(region) => monitor.view(&by, region).map(|view| {
                files.extend(view);
                MonitorSays::Done
            }),
            AskMonitor::Write { at, skipped, bytes } => {
                done(monitor.write(&by, at, skipped as usize, &bytes))
            }
            AskMonitor::WriteTogether { disk, writes } => {
                let writes = self.staged(component, writes)?;
                done(monitor.write_together(&by, disk, &writes))
            }
            AskMonitor::Look(references) => monitor.look(&by, &references).map(MonitorSays::Look),
            AskMonitor::Read(at) => {
                let mut page = [0; PAGE_BYTES];
                monitor.read(&by, at, &mut page).map(|()| MonitorSays::Page(page.to_vec()))
            }
            AskMonitor::Names => {
                let (process, names, said) = self.judging()?.names(component).map_err(failed)?;
                return Ok(MonitorSays::Names { process, names, said });
            }
            AskMonitor::Enter(entering) => return self.enter(component, entering).map(MonitorSays::Entry),
            AskMonitor::Refusals => {
                let (gate, _) = self.gates.get(component).ok_or(Refusal::NotPermitted)?;
                let denials = gate.door.denials(None).into_iter().rev().take(32);
                let told = denials.map(|one| (one.inode, one.process, one.program, one.reason)).collect();
                return Ok(MonitorSays::Refusals(told, gate.door.check_helper().err()));
            }
            AskMonitor::Ended(bytes) if component == POLICY => {
                let endings = Standing::decode(&bytes).map_err(failed)?;
                if self.aliases.revoked(&endings).map_err(failed)? {
                    self.lost();
                }
                return Ok(MonitorSays::Done);
            }
            AskMonitor::Withdrawn if component == POLICY => {
                // One that waits already is for this, too.
                let _ = self.withdrawn.try_send(());
                return Ok(MonitorSays::Done);
            }
            AskMonitor::Ended(_) | AskMonitor::Withdrawn => return Err(Refusal::NotPermitted),
            AskMonitor::Present(bytes) => {
                self.judging()?;
                self.aliases.present(component, &bytes).map_err(failed)?;
                return Ok(MonitorSays::Done);
            }
            AskMonitor::AddAlias(proof) => {
                return self.judging()?.prove(component, &proof).map(MonitorSays::Alias).map_err(failed);
            }
        };
        said.map_err(refusal)
    }

    /// Names may be proved now; else it is to be asked again: revocations of earlier runs are not known yet.
    fn judging(&self) -> Result<&Aliases, Refusal> {
        if self.aliases.is_told() { Ok(&self.aliases) } else { Err(Refusal::Code(BUSY)) }
    }

    /// Somebody lost a name: what they see and keep by it goes, at once where it is ours.
    pub(super) fn lost(&self) {
        if let Err(error) = self.monitor.revoke_views() {
            tracing::error!(%error, "views could not be taken away; the stack ends");
            std::process::exit(1);
        }
        let _ = self.withdrawn.try_send(());
    }

    /// An open in a session for a program.
    fn enter(&self, component: &str, entering: Entering) -> Result<Entry, Refusal> {
        let (gate, uid) = self.gates.get(component).ok_or(Refusal::NotPermitted)?;
        match gate.enter(entering) {
            None => Err(Refusal::Code(BUSY)),
            Some(Err(entry)) => Ok(entry),
            Some(Ok(identity)) => {
                let manifest = gate.manifest(&identity, *uid);
                let came = self.aliases.client_came(component, identity.process, identity.started, manifest);
                came.map_err(|error| Refusal::Failed(error.to_string()))?;
                Ok(Entry::GoesOn)
            }
        }
    }

    /// Contents from a component's stage: copied first, so that what is checked and hashed is what is written.
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
