//! A server that lies at random: it keeps several copies of the file system, moves clients between them, mixes
//! what it shows, and answers acknowledgements as it likes.
//!
//! Proves, seed by seed: whatever it does, no client ever accepts two things that contradict each other (the
//! ledger would stop the run), and a client that has alarmed does nothing any more.

use super::liar::{Lie, Stage, receipt_for};
use super::server::Server;
use holdfast_content::DeviceId;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use std::collections::BTreeMap;

const LIES: [Lie; 13] = [
    Lie::Rollback,
    Lie::StaleSlot,
    Lie::HideSlot,
    Lie::DropPending,
    Lie::ReorderPending,
    Lie::ForgeForecast,
    Lie::KillCommitted,
    Lie::ReviveDead,
    Lie::ReplayAnswer,
    Lie::AlterTable,
    Lie::AlterCertificate,
    Lie::ShortenLog,
    Lie::RewriteLog,
];

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Operations tried.
    pub tried: u64,
    /// Answers that were false.
    pub lies: u64,
    /// Clients that alarmed.
    pub alarms: u64,
}

/// Runs one seed with three victims.
///
/// # Panics
/// If fork consistency is broken.
pub fn run(seed: u64, steps: u64) -> Report {
    let mut stage = Stage::set(false);
    stage.random = crate::random::Random::new(seed);
    let mut random = crate::random::Random::new(!seed);
    let mut copies: Vec<Server> = vec![stage.server.clone()];
    let mut lives_in = [0; 4];
    let mut signed: BTreeMap<DeviceId, Vec<Signed<Structure>>> = BTreeMap::new();
    let mut report = Report::default();
    for _ in 0..steps {
        let client = 1 + random.below(3) as usize;
        if stage.clients[client].is_down() {
            continue;
        }
        if random.chance(10) && copies.len() < 6 {
            copies.push(copies[lives_in[client]].clone());
            lives_in[client] = copies.len() - 1;
        } else if random.chance(5) {
            lives_in[client] = random.below(copies.len() as u64) as usize;
        }
        stage.server = copies[lives_in[client]].clone();
        stage.clients[client].slow_only = random.chance(50);
        let lies = stage.lies();
        let shown = stage.server.clone().handle(0, DeviceId(client as u32), Request::Look { log_size: 0 });
        let mut told = 0;
        let mut forget = false;
        let alarm = stage.operate(client, &mut |request, response| {
            if let Request::Commit { structure, .. } | Request::Fast { structure, .. } = request {
                signed.entry(structure.value.device()).or_default().push(structure.clone());
            }
            if !random.chance(15) {
                return response;
            }
            told += 1;
            match response {
                Response::View(mut reply) => {
                    match random.below(3) {
                        0 => {
                            // A structure of any device from any copy.
                            let device = DeviceId(1 + random.below(3) as u32);
                            if let Some(structures) = signed.get(&device) {
                                reply.view.slots.insert(device, random.pick(structures).clone());
                            }
                        }
                        1 => lies.apply(Lie::DropPending, &mut reply),
                        _ => lies.apply(*random.pick(&LIES), &mut reply),
                    }
                    Response::View(reply)
                }
                Response::Committed(_) if random.chance(50) => Response::Refused,
                Response::Committed(receipt) => {
                    forget = true;
                    Response::Committed(receipt)
                }
                Response::Refused | Response::Aborted | Response::Error(_) => match request {
                    Request::Commit { structure, .. } | Request::Fast { structure, .. } => {
                        Response::Committed(receipt_for(&structure.value))
                    }
                    _ => shown.clone(),
                },
                other => other,
            }
        });
        report.tried += 1;
        report.lies += told;
        report.alarms += u64::from(alarm.is_some());
        if !forget {
            copies[lives_in[client]] = stage.server.clone();
        }
    }
    report
}
