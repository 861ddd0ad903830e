//! Requests of members of a file system: one handler for each kind of request.

use super::{Caller, ServerCore};
use crate::blocks::{self, RetrievedBlocks};
use crate::file_system::{Author, FileSystem};
use crate::parcels::{self, Unpacked};
use crate::refusal::{RequestError, refuse};
use crate::resources::Resources;
use holdfast_content::{Parcel, StoredBlock};
use holdfast_crypto::{Digest, PublicKey, Signature};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{LEASE_REQUESTS_MAX, LeaseGrant, LeaseRequest};
use holdfast_protocol::locks::SessionId;
use holdfast_protocol::message::{
    ATTACHED_PLAIN_BYTES_MAX, AddressedBlock, Attached, PARCELS_PLAIN_BYTES_MAX, Request, Response,
    ServerError, ServerKeys,
};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use tracing::trace_span;

/// Longest a device may pin blocks in one request.
const PIN_SECONDS_MAX: u32 = 3600;
/// Largest signed block.
const SIGNED_BLOCK_BYTES_MAX: usize = 64 << 10;
/// Most signed blocks under one key.
const SIGNED_BLOCKS_PER_KEY: u64 = 1024;
/// Why a server whose order is in a cluster stores no signed blocks.
const NO_SIGNED_BLOCKS: &str =
    "signed blocks are kept by servers that have the order in their own data directory";

type Answer = Result<Response, RequestError>;

/// A request of a member's device.
pub(super) struct MemberRequest<'a> {
    pub(super) core: &'a ServerCore,
    pub(super) resources: &'a Resources,
    pub(super) caller: &'a Caller,
    pub(super) file_system: &'a FileSystem,
    pub(super) author: Author,
    pub(super) now_ns: i64,
}

impl MemberRequest<'_> {
    /// Answers a request. The waiting of `AwaitRecall`, `AwaitLock` and `FetchPending` happens elsewhere.
    pub(super) fn answer(&self, request: Request) -> Answer {
        let (core, resources, file_system) = (self.core, self.resources, self.file_system);
        let (author, device) = (self.author, self.author.device);
        let kind: &str = (&request).into();
        let _span = trace_span!(target: "operation", "member request", device = device.0, kind).entered();
        if core.awaiting.has(&self.id()) && !is_harmless(&request) {
            return Err(ServerError::AwaitsDeclaration.into());
        }
        match request {
            Request::DeclareRestore { certificate, structure, blocks } => {
                self.declare_restore(certificate, structure, blocks)
            }
            Request::Update { .. } => self.update(request),
            Request::Commit { structure, attached } => self.commit(structure, attached),
            Request::Fast { .. } => self.fast(request),
            Request::Look { log_size } => {
                let reply = file_system.look(device, log_size)?;
                self.sync()?;
                Ok(Response::View(reply))
            }
            Request::Store(blocks) => self.store(blocks),
            Request::StoreParcels(parcels) => self.store_parcels(parcels),
            Request::Retrieve(addresses) => self.retrieve(&addresses),
            Request::RetrieveParcel { wanted, bases, level } => {
                parcels::retrieve(&*resources.blocks, &resources.parcels, self.id(), &wanted, &bases, level)
            }
            Request::RetrieveTree { root, have, data, bytes_max, level } => {
                let walk = parcels::TreeRequest { root, have: &have, data, bytes_max, level };
                parcels::retrieve_tree(&*resources.blocks, &resources.parcels, self.id(), walk)
            }
            Request::Present(addresses) => self.present(&addresses),
            Request::Dereference(addresses) => self.dereference(addresses),
            Request::VStore { index, bytes, signature } => self.store_signed(index, &bytes, signature),
            Request::VRetrieve { key, index, before_ns } => self.retrieve_signed(&key, index, before_ns),
            Request::Snapshot => {
                resources.blocks.snapshot(self.id(), self.now_ns)?;
                self.done()
            }
            Request::Pin { addresses, seconds } => self.pin(&addresses, seconds),
            Request::Hold { name, roots } => file_system.hold(device, name, roots),
            Request::Unhold { name } => file_system.unhold(device, &name),
            Request::Usage => Ok(Response::Usage(file_system.usage(device)?)),
            Request::Holds => Ok(Response::Holds(file_system.holds()?)),
            Request::AwaitRecall { run, epoch, acknowledged, .. } => {
                Ok(Response::Recalled(file_system.recall(device, run, epoch, acknowledged)))
            }
            Request::EndLeases { run } => {
                file_system.end_leases(device, run);
                Ok(Response::Done)
            }
            Request::Lock(request) => file_system.lock(device, &request),
            Request::TestLock(request) => file_system.test_lock(device, &request),
            Request::AwaitLock { lock, .. } => file_system.wait_for_lock(device, &lock),
            Request::KeepLocks { run } => file_system.keep_locks(device, run),
            Request::EndLocks { run } => Ok(file_system.end_locks(device, run)),
            Request::Witnessed { log_size } => {
                Ok(Response::Witnessed(file_system.witnessed_heads(log_size)?))
            }
            Request::SetServerKeys(list) => self.set_server_keys(list),
            Request::History { after, note } => file_system.history(after, note),
            Request::Past { log_size, known } => file_system.past(log_size, known),
            Request::NameSnapshot(snapshot) => file_system.name_snapshot(author, snapshot),
            Request::EndSnapshot(end) => file_system.end_snapshot(author, end),
            Request::Leaves { first, count } => file_system.leaves(first, count),
            Request::Servers => Ok(core.servers()),
            Request::BlockServer(_) => refuse("this is no block server"),
            Request::Hello { .. }
            | Request::Ping
            | Request::CreateFileSystem { .. }
            | Request::FetchPending { .. } => refuse("this request is answered elsewhere"),
        }
    }

    fn id(&self) -> Digest {
        self.file_system.id
    }

    /// Makes everything appended so far durable.
    fn sync(&self) -> Result<(), RequestError> {
        self.file_system.sync()
    }

    /// Makes everything appended so far durable, and replies `Done`.
    fn done(&self) -> Answer {
        self.sync()?;
        Ok(Response::Done)
    }

    fn declare_restore(
        &self,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        blocks: Vec<AddressedBlock>,
    ) -> Answer {
        let (core, file_system) = (self.core, self.file_system);
        let known = file_system.declared(&structure);
        if known.is_none() && !core.awaiting.has(&self.id()) {
            return refuse(
                "this server was not started as one that was put back (holdfast server --restored)",
            );
        }
        let checked = blocks::check_attached(blocks)?;
        let receipt = match known {
            Some(receipt) => receipt,
            None => file_system.declare_restore(self.author, certificate, structure, checked)?,
        };
        let reply = file_system.settle(Ok(receipt))?;
        core.awaiting.declared(&self.id());
        tracing::info!(file_system = %self.id(), operations = file_system.log_size(), "its restore was declared");
        Ok(reply)
    }

    /// UPDATE: orders an operation by its certificate, and replies with the view.
    fn update(&self, request: Request) -> Answer {
        let Request::Update { certificate, attached, log_size, by_difference, lease } = request else {
            return refuse("this is no update");
        };
        let number = certificate.value.number;
        let _span =
            trace_span!(target: "operation", "Update", device = self.author.device.0, number).entered();
        let checked = match self.attached(attached)? {
            Unpacked::Blocks(checked) => checked,
            Unpacked::BasesMissing(missing) => return Ok(Response::BasesMissing(missing)),
        };
        check_lease_request(lease.as_ref())?;
        let run = lease.as_ref().map(|lease_request| lease_request.run);
        let (reply, grant) =
            self.file_system.update(self.author, certificate, checked, log_size, by_difference, lease)?;
        self.sync()?;
        self.file_system.tell_waiters();
        Ok(match (reply, self.noted(run, grant)) {
            (Response::View(reply), Some(grant)) => Response::LeasedView(reply, grant),
            (Response::Difference(difference), Some(grant)) => Response::LeasedDifference(difference, grant),
            (reply, _) => reply,
        })
    }

    /// COMMIT: the structure of an operation that was ordered by [`MemberRequest::update`].
    fn commit(&self, structure: Signed<Structure>, attached: Attached) -> Answer {
        let number = structure.value.number();
        let _span =
            trace_span!(target: "operation", "Commit", device = self.author.device.0, number).entered();
        let checked = match self.attached(attached)? {
            Unpacked::Blocks(checked) => checked,
            Unpacked::BasesMissing(missing) => return Ok(Response::BasesMissing(missing)),
        };
        let outcome = self.file_system.commit(self.author, structure, checked)?;
        self.file_system.settle(outcome.ok_or(Response::Aborted))
    }

    /// UPDATE and COMMIT in one request. It is carried out if the view that was signed against is the present
    /// one and nothing is pending.
    fn fast(&self, request: Request) -> Answer {
        let Request::Fast { certificate, structure, attached, log_size, by_difference, lease } = request
        else {
            return refuse("this is no fast operation");
        };
        let number = certificate.value.number;
        let _span = trace_span!(target: "operation", "Fast", device = self.author.device.0, number).entered();
        let checked = match self.attached(attached)? {
            Unpacked::Blocks(checked) => checked,
            Unpacked::BasesMissing(missing) => return Ok(Response::BasesMissing(missing)),
        };
        check_lease_request(lease.as_ref())?;
        let run = lease.as_ref().map(|lease_request| lease_request.run);
        let known = by_difference.then_some(log_size);
        let (outcome, grant) =
            self.file_system.fast(self.author, certificate, structure, checked, known, lease)?;
        let reply = self.file_system.settle(outcome)?;
        Ok(match (reply, self.noted(run, grant)) {
            (Response::Committed(receipt), Some(grant)) => Response::LeasedCommitted(receipt, grant),
            (reply, _) => reply,
        })
    }

    fn store(&self, given: Vec<AddressedBlock>) -> Answer {
        let checked = blocks::check(given, usize::MAX)?;
        self.put(checked)
    }

    fn store_parcels(&self, given: Vec<Parcel>) -> Answer {
        match parcels::unpack(&*self.resources.blocks, self.id(), given, PARCELS_PLAIN_BYTES_MAX)? {
            Unpacked::BasesMissing(missing) => Ok(Response::BasesMissing(missing)),
            Unpacked::Blocks(unpacked) => self.put(unpacked),
        }
    }

    fn put(&self, checked: Vec<(Digest, StoredBlock)>) -> Answer {
        self.resources.counters.blocks_stored.add(checked.len() as u64);
        let allowance = self.file_system.allowance(self.author.device);
        self.resources.blocks.store(
            self.id(),
            self.author.device,
            checked,
            allowance.as_ref(),
            self.now_ns,
        )?;
        self.done()
    }

    fn retrieve(&self, addresses: &[Digest]) -> Answer {
        let RetrievedBlocks { blocks, bytes } =
            blocks::retrieve(&*self.resources.blocks, self.id(), addresses, self.caller.answer_bytes)?;
        self.resources.counters.blocks_retrieved.add(blocks.len() as u64);
        self.resources.counters.bytes_retrieved.add(bytes as u64);
        Ok(Response::Blocks(blocks))
    }

    fn present(&self, addresses: &[Digest]) -> Answer {
        blocks::check_count(addresses.len())?;
        let here = self.resources.blocks.renew(self.id(), addresses, self.now_ns)?;
        Ok(Response::Present(here.into_iter().collect()))
    }

    fn dereference(&self, addresses: Vec<Digest>) -> Answer {
        blocks::check_count(addresses.len())?;
        // A table that was replaced since may belong to a past state that must stay readable.
        let past = self.file_system.past_tables()?;
        let addresses: Vec<_> = addresses.into_iter().filter(|address| !past.contains(address)).collect();
        let dropped =
            self.resources.blocks.dereference(self.id(), self.author.device, &addresses, self.now_ns)?;
        self.sync()?;
        Ok(Response::Dereferenced(dropped))
    }

    fn store_signed(&self, index: u64, bytes: &[u8], signature: Signature) -> Answer {
        if self.core.cluster.is_some() {
            return refuse(NO_SIGNED_BLOCKS);
        }
        if bytes.len() > SIGNED_BLOCK_BYTES_MAX || index >= SIGNED_BLOCKS_PER_KEY {
            return refuse("a signed block is over the limits");
        }
        if self.file_system.allowance(self.author.device).is_some() {
            return refuse("signed blocks are not charged, so nobody with a limit may store them");
        }
        self.resources.store.vstore(self.id(), &self.author.key, index, bytes, signature, self.now_ns)?;
        self.done()
    }

    fn retrieve_signed(&self, key: &PublicKey, index: u64, before_ns: Option<i64>) -> Answer {
        if self.core.cluster.is_some() {
            return refuse(NO_SIGNED_BLOCKS);
        }
        let found = self.resources.store.vretrieve(self.id(), key, index, before_ns)?;
        Ok(Response::SignedBlock(found.map(|found| (found.block, found.signature, found.stored_ns))))
    }

    fn pin(&self, addresses: &[Digest], seconds: u32) -> Answer {
        blocks::check_count(addresses.len())?;
        if seconds > PIN_SECONDS_MAX {
            return refuse("a pin lasts at most 3,600 seconds");
        }
        let until_ns = self.now_ns.saturating_add(i64::from(seconds) * 1_000_000_000);
        self.resources.blocks.pin(
            self.id(),
            self.author.device.0.into(),
            addresses,
            until_ns,
            self.now_ns,
        )?;
        self.done()
    }

    fn set_server_keys(&self, list: Signed<ServerKeys>) -> Answer {
        self.file_system.set_server_keys(list, &self.author.key)?;
        self.done()
    }

    /// Checks the blocks that came with an operation, and unpacks its parcels.
    fn attached(&self, given: Attached) -> Result<Unpacked, RequestError> {
        let mut checked = blocks::check_attached(given.blocks)?;
        let blocks = &*self.resources.blocks;
        Ok(match parcels::unpack(blocks, self.id(), given.parcels, ATTACHED_PLAIN_BYTES_MAX)? {
            Unpacked::Blocks(unpacked) => {
                checked.extend(unpacked);
                Unpacked::Blocks(checked)
            }
            missing => missing,
        })
    }

    /// The grant, once it is durably noted that the session holds leases. If noting fails, the grant without
    /// leases.
    fn noted(&self, run: Option<u128>, grant: Option<LeaseGrant>) -> Option<LeaseGrant> {
        let (file_system, device) = (self.file_system, self.author.device);
        let grant = grant?;
        if grant.term_ms == 0 {
            return Some(grant);
        }
        let (run, exclusively) = (run?, grant.exclusive_ms > 0);
        let noted = match file_system.order.notes() {
            Some(notes) => file_system.note_session(notes, device, run, exclusively).map_err(Into::into),
            None => self.core.note_leases(file_system, SessionId { device, run }, exclusively),
        };
        match noted {
            Ok(()) => Some(grant),
            Err(error) => {
                tracing::warn!(%error, "it cannot be noted who holds leases, so none are granted");
                Some(grant.without_leases())
            }
        }
    }
}

/// Whether a request is answered while a restore awaits its declaration: only what it takes to see the state
/// that is left, and to declare the restore.
fn is_harmless(request: &Request) -> bool {
    matches!(
        request,
        Request::Look { .. }
            | Request::Retrieve(_)
            | Request::RetrieveParcel { .. }
            | Request::RetrieveTree { .. }
            | Request::DeclareRestore { .. }
            | Request::EndLeases { .. }
            | Request::EndLocks { .. }
    )
}

/// Refuses a request for more leases than one operation may carry.
fn check_lease_request(lease_request: Option<&LeaseRequest>) -> Result<(), RequestError> {
    match lease_request {
        Some(LeaseRequest { scopes, reads, edits, also, .. })
            if [scopes.len(), reads.len(), edits.len(), also.len()]
                .iter()
                .any(|length| *length > LEASE_REQUESTS_MAX) =>
        {
            refuse(format!("a request for more than {LEASE_REQUESTS_MAX} leases"))
        }
        _ => Ok(()),
    }
}
