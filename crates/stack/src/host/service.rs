//! What components ask of the monitor, answered.

use super::aliases::Aliases;
use super::memory::Tmpfs;
use super::refusal;
use crate::protocol::{AskMonitor, MonitorSays, STAGE_PAGES};
use holdfast_components::{Answer, Refusal, Region, Request};
use holdfast_monitor::{Monitor, MonitorError, PAGE_BYTES, Reference, Write};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The monitor, and what it needs to know of who asks.
pub(super) struct Service {
    pub monitor: Monitor<Tmpfs>,
    pub aliases: Arc<Aliases>,
    /// The areas through which components hand over contents.
    pub stages: HashMap<String, Arc<Region>>,
}

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
            AskMonitor::Present(bytes) => {
                self.aliases.present(component, &bytes).map_err(failed)?;
                return Ok(MonitorSays::Done);
            }
            AskMonitor::AddAlias(proof) => {
                return self.aliases.prove(component, &proof).map(MonitorSays::Alias).map_err(failed);
            }
        };
        said.map_err(refusal)
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
