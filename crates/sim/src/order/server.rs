//! An honest server around the sequencer: what is durable survives its crashes, and answers wait for that.

use super::{device_key, server_key, server_keys};
use holdfast_content::{BlockKind, BlockSource, DeviceId, Membership, MemoryBlocks};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::{Certificate, Delta};
use holdfast_protocol::log_tree::{Node, consistency_proof};
use holdfast_protocol::message::{Receipt, Request, Response, ServerError, ViewReply};
use holdfast_protocol::sequencer::{
    CommitOutcome, FastOutcome, OrderingRecord, OrderingStatus, Sequencer, Step, UpdateOutcome,
};
use holdfast_protocol::signed::{Signable, Signed, Verified};
use holdfast_protocol::structure::Structure;
use std::collections::HashMap;
use std::rc::Rc;

/// The server of one file system. A clone is a fork of it.
#[derive(Clone)]
pub struct Server {
    blocks: Rc<MemoryBlocks>,
    abort_after_ms: u64,
    sequencer: Sequencer,
    nodes: HashMap<(u8, u64), Digest>,
    checkpoint: Option<Vec<u8>>,
    durable: Vec<Vec<u8>>,
    unsynced: Vec<Vec<u8>>,
    /// Where in the log each operation is, for the final checks only.
    places: HashMap<(DeviceId, u64), u64>,
}

impl Server {
    /// A server that accepts the founding request; returns the receipt.
    ///
    /// # Panics
    /// If the founding request is not valid.
    pub fn create(blocks: Rc<MemoryBlocks>, abort_after_ms: u64, founding: Request) -> (Server, Response) {
        let Request::Fast { certificate, structure, .. } = founding else {
            panic!("founding operations are fast")
        };
        let membership = new_membership(&blocks, &certificate.value).expect("it brings a membership");
        let superuser = device_key(DeviceId(0)).public();
        let step = Sequencer::create(superuser, certificate, structure, membership, abort_after_ms)
            .expect("a valid founding operation");
        let (sequencer, receipt) = step.answer;
        let mut server = Server {
            blocks,
            abort_after_ms,
            sequencer,
            nodes: HashMap::new(),
            checkpoint: None,
            durable: Vec::new(),
            unsynced: Vec::new(),
            places: HashMap::new(),
        };
        server.keep(step.records, step.nodes);
        server.sync();
        (server, committed(receipt))
    }

    /// The sequencer.
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// The position of each operation in the log of updates.
    pub fn places(&self) -> &HashMap<(DeviceId, u64), u64> {
        &self.places
    }

    fn keep(&mut self, records: Vec<OrderingRecord>, nodes: Vec<Node>) {
        for record in &records {
            if let OrderingRecord::Create { certificate, .. }
            | OrderingRecord::Update { certificate, .. }
            | OrderingRecord::Fast { certificate, .. } = record
            {
                let operation = (certificate.value.device, certificate.value.number);
                self.places.insert(operation, self.sequencer.log_size() - 1);
            }
        }
        self.unsynced.extend(records.iter().map(OrderingRecord::to_bytes));
        self.nodes.extend(nodes);
    }

    /// Makes everything so far durable; answers made before may be sent now.
    pub fn sync(&mut self) {
        self.durable.append(&mut self.unsynced);
    }

    /// Replaces the durable records by a checkpoint.
    pub fn write_checkpoint(&mut self) {
        self.sync();
        self.checkpoint = Some(self.sequencer.checkpoint());
        self.durable.clear();
    }

    /// Loses what is not durable and starts again.
    ///
    /// # Panics
    /// If the durable records do not restore.
    pub fn crash(&mut self, now_ms: u64) {
        self.unsynced.clear();
        let (sequencer, nodes) =
            Sequencer::restore(self.checkpoint.as_deref(), &self.durable, self.abort_after_ms, now_ms)
                .expect("durable records restore");
        self.sequencer = sequencer;
        self.nodes.extend(nodes);
    }

    /// Handles a request of `device`. The answer may be sent after [`Server::sync`].
    pub fn handle(&mut self, now_ms: u64, device: DeviceId, request: Request) -> Response {
        match request {
            Request::Look { log_size } => {
                let reply = self.sequencer.look();
                self.view(reply, log_size)
            }
            Request::Update { certificate, log_size, .. } => {
                let membership = new_membership(&self.blocks, &certificate.value);
                let Some(certificate) = self.verified(device, certificate) else { return bad_signature() };
                match self.sequencer.update(now_ms, device, &certificate, membership) {
                    Ok(step) => match self.answer(step) {
                        UpdateOutcome::View(reply) => self.view(*reply, log_size),
                        UpdateOutcome::Aborted => Response::Aborted,
                        UpdateOutcome::Refused => Response::Refused,
                    },
                    Err(refusal) => Response::Error(refusal.into()),
                }
            }
            Request::Fast { certificate, structure, .. } => {
                let membership = new_membership(&self.blocks, &certificate.value);
                let verified = self.verified(device, certificate).zip(self.verified(device, structure));
                let Some((certificate, structure)) = verified else { return bad_signature() };
                match self.sequencer.fast(now_ms, device, &certificate, &structure, membership) {
                    Ok(step) => match self.answer(step) {
                        FastOutcome::Accepted(receipt) => committed(receipt),
                        FastOutcome::Refused => Response::Refused,
                    },
                    Err(refusal) => Response::Error(refusal.into()),
                }
            }
            Request::Commit { structure, .. } => {
                let Some(structure): Option<Verified<Structure>> = self.verified(device, structure) else {
                    return bad_signature();
                };
                match self.sequencer.commit(device, &structure) {
                    Ok(step) => match self.answer(step) {
                        CommitOutcome::Committed(receipt) => committed(receipt),
                        CommitOutcome::Aborted => Response::Aborted,
                    },
                    Err(refusal) => Response::Error(refusal.into()),
                }
            }
            Request::FetchPending { device, number, .. } => match self.sequencer.standing(device, number) {
                OrderingStatus::Committed(structure) => Response::Structure(Some(structure)),
                OrderingStatus::Pending | OrderingStatus::Gone => Response::Structure(None),
            },
            Request::Hello { .. } => Response::Hello(holdfast_protocol::message::Welcome {
                version: 1,
                file_system: Some((self.sequencer.superuser(), server_keys())),
                device: Some(device),
                abort_after_ms: self.abort_after_ms as u32,
            }),
            _ => Response::Error(ServerError::Invalid("not simulated".to_owned())),
        }
    }

    fn answer<T>(&mut self, step: Step<T>) -> T {
        self.keep(step.records, step.nodes);
        step.answer
    }

    fn view(&self, mut reply: ViewReply, log_size: u64) -> Response {
        let lookup = &mut |level, index| self.nodes.get(&(level, index)).copied();
        match consistency_proof(log_size, reply.view.log.size, lookup) {
            Some(proof) => {
                reply.consistency = proof;
                Response::View(Box::new(reply))
            }
            None => Response::Error(ServerError::Invalid("the log is not that long".to_owned())),
        }
    }

    fn verified<T: Signable>(&self, device: DeviceId, signed: Signed<T>) -> Option<Verified<T>> {
        let key = self.sequencer.membership().devices.get(&device)?.key;
        signed.verified(key)
    }
}

fn committed(receipt: Receipt) -> Response {
    Response::Committed(Signed::new(receipt, &server_key()))
}

fn bad_signature() -> Response {
    Response::Error(ServerError::Invalid("bad signature".to_owned()))
}

/// The membership block that a certificate names.
fn new_membership(blocks: &MemoryBlocks, certificate: &Certificate) -> Option<Membership> {
    certificate.deltas.iter().find_map(|delta| match delta {
        Delta::SetMembers { reference } => {
            let block = blocks.fetch(reference, BlockKind::Membership).ok()?;
            Membership::from_block(&block).ok()
        }
        _ => None,
    })
}
