//! One store at a block server on another machine.
//!
//! Invariants:
//! - A call that changes something returns when the change is durable there.
//! - A received block is accepted only if it matches its address.
//! - The store there must be the remembered one, and must have everything that it has acknowledged: each
//!   request names the store and the position. If the store is another one, or an older copy, that is noted
//!   durably, and nothing is collected there until the operator has accepted it. Otherwise marking would stop
//!   at missing blocks, and blocks below them would look unused. Reading and storing go on, because the store
//!   itself says what it has.

use crate::block_store::interface::{
    BlockStore, BlockStoreError, BlockStoreStatus, ScrubSummary, stored_bytes,
};
use crate::block_store::note::{Note, digits};
use crate::block_store::open_error::{BlocksOpenError, NOBODY};
use holdfast_content::{BODY_BYTES_MAX, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, SigningKey};
use holdfast_protocol::block_server::{
    BlockCall, BlockFault, BlockFigures, BlockReply, BlockRequest, BlockResult, BucketStatus, ListedBlock,
    LoadedBlock, PinEntry, SHARDS_MAX, Shard, StoreAllowance, StoreId,
};
use holdfast_protocol::message::{
    AddressedBlock, BATCH_MAX, HoldEntry, MESSAGE_BYTES_MAX, Request, Response, ServerError,
};
use holdfast_rpc::{Connection, ConnectionOptions, Connector, RpcError, Transport};
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a call usually waits for a block server that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a call waits after the block server could not be reached for [`PATIENCE`].
const PATIENCE_AWAY: Duration = Duration::from_secs(1);
/// How long a collection or a scrub may take.
const PATIENCE_LONG: Duration = Duration::from_secs(24 * 3600);
/// How long the first connection may take.
const PATIENCE_FIRST: Duration = Duration::from_secs(30);
/// A connection is given up after so long without any received bytes.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Most bytes of blocks in one message.
const STORE_BYTES: usize = 4 << 20;
/// Most bytes of blocks in one reply.
const LOAD_BYTES: usize = MESSAGE_BYTES_MAX - (2 << 20);
/// Most blocks in one request.
const BATCH: usize = 64;
/// How often a request is repeated when the store turns out to be another one.
const SURPRISES_MAX: u32 = 3;

/// A store on another machine.
pub(super) struct RemoteStore {
    connection: Connection,
    address: String,
    note: Mutex<Note>,
    /// How long a call waits for the block server.
    pub(super) patience: Duration,
    /// Since when the block server cannot be reached; `None` if it can.
    away: Mutex<Option<Instant>>,
}

impl RemoteStore {
    /// Connects to the block server that has a shard of the blocks. `None` stands for an undivided store, or
    /// for any block server of a group, to learn the number of shards.
    ///
    /// # Errors
    /// [`BlocksOpenError`]
    pub(super) fn connect(
        note: Note,
        key: SigningKey,
        shard: Option<Shard>,
    ) -> Result<RemoteStore, BlocksOpenError> {
        let options = ConnectionOptions {
            transport: Transport::Tcp,
            dead_after: DEAD_AFTER,
            ping_after: DEAD_AFTER / 4,
            pause_max: Duration::from_secs(1),
            ..ConnectionOptions::default()
        };
        let own = holdfast_crypto::keyfile::format_public(&key.public(), "holdfast server");
        let connector = Connector {
            server_key: Some(note.address.key),
            requested: shard.map(Shard::name),
            options,
            ..Connector::new(key, note.address.servers(), None)
        };
        let address = note.address.to_string();
        let failed = |error| {
            let address = address.clone();
            match error {
                RpcError::Server(ServerError::NotAllowed(why)) => {
                    BlocksOpenError::NotAllowed { address, why, own: own.clone() }
                }
                RpcError::Server(ServerError::Elsewhere(_)) => BlocksOpenError::Nobody { address },
                error => BlocksOpenError::Connect { address, error },
            }
        };
        let connection = connector.connect(PATIENCE_FIRST).map_err(failed)?;
        let (note, away) = (Mutex::new(note), Mutex::new(None));
        Ok(RemoteStore { connection, address, note, patience: PATIENCE, away })
    }

    /// In how many shards the blocks there are; `None` if they are in one piece.
    ///
    /// # Errors
    /// The block server cannot be reached, or failed.
    pub(super) fn shards(&self) -> Result<Option<u16>, BlockStoreError> {
        let (store, file_system) = (None, Digest::ZERO);
        let reply = self.exchange(BlockRequest { store, known: 0, file_system, call: BlockCall::Greet })?;
        match reply.outcome {
            Ok(BlockResult::Shards(shards)) if (2..=SHARDS_MAX).contains(&shards) => Ok(Some(shards)),
            Ok(BlockResult::Shards(_)) => self.unexpected(),
            _ => Ok(None),
        }
    }

    /// Checks whether the store is the remembered one. If it is not, that is noted.
    ///
    /// # Errors
    /// The block server cannot be reached, or failed.
    pub(super) fn greet(&self) -> Result<(), BlockStoreError> {
        self.call(Digest::ZERO, BlockCall::Greet).map(drop)
    }

    /// Writes the note about the store.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn write_note(&self) -> std::io::Result<()> {
        self.note.lock().write()
    }

    /// The note about the store; the connection is closed.
    pub(super) fn into_note(self) -> Note {
        self.note.into_inner()
    }

    /// The address of the block server.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn call(&self, file_system: Digest, call: BlockCall) -> Result<BlockResult, BlockStoreError> {
        let mut surprises = 0;
        loop {
            let (store, known) = {
                let note = self.note.lock();
                (note.store, note.position)
            };
            let reply = self.exchange(BlockRequest { store, known, file_system, call: call.clone() })?;
            let doubt = match &reply.outcome {
                Err(BlockFault::OtherStore) => format!(
                    "the block store {} is not the one that was there before (it is {}, it was {})",
                    self.address,
                    digits(&reply.store),
                    store.map_or_else(String::new, |store| digits(&store)),
                ),
                Err(BlockFault::OlderStore) => format!(
                    "the block store {} is an older copy: it lacks something that it had acknowledged",
                    self.address
                ),
                _ => {
                    self.check_reply(&reply)?;
                    return reply.outcome.map_err(|fault| self.explain(fault));
                }
            };
            surprises += 1;
            if surprises > SURPRISES_MAX {
                return Err(self.failed("it is now one store, now another"));
            }
            self.doubt(doubt, (store, known), &reply)?;
        }
    }

    /// Notes up to which position the store is durable, before the caller gets the reply.
    fn check_reply(&self, reply: &BlockReply) -> Result<(), BlockStoreError> {
        let mut note = self.note.lock();
        let unnoted =
            |error: std::io::Error| self.failed(&format!("its position cannot be noted here: {error}"));
        if note.store.is_none() {
            note.store = Some(reply.store);
            note.write().map_err(unnoted)?;
        }
        // A reply that was under way while the store was replaced says nothing about the present one.
        if note.store == Some(reply.store) && reply.position > note.position {
            note.put_position(reply.position).map_err(unnoted)?;
        }
        Ok(())
    }

    /// Notes that the store is not the remembered one, and goes on with the one that is there.
    fn doubt(
        &self,
        doubt: String,
        believed: (Option<StoreId>, u64),
        reply: &BlockReply,
    ) -> Result<(), BlockStoreError> {
        let mut note = self.note.lock();
        if (note.store, note.position) != believed {
            // Another call has noted it meanwhile.
            return Ok(());
        }
        let error = BlockStoreError::Doubtful { doubt: doubt.clone() };
        tracing::error!("{error}");
        (note.store, note.doubt) = (Some(reply.store), Some(doubt));
        let position = reply.position;
        let noted = note.write().and_then(|()| note.put_position(position));
        noted.map_err(|error| self.failed(&format!("it cannot be noted here: {error}")))
    }

    fn exchange(&self, request: BlockRequest) -> Result<BlockReply, BlockStoreError> {
        let patience = match *self.away.lock() {
            Some(since) if since.elapsed() > self.patience => PATIENCE_AWAY,
            _ => self.patience,
        };
        let answer = if !request.call.takes_long() {
            self.connection.call_blocking(Request::BlockServer(Box::new(request)), patience)
        } else {
            self.connection.wait_until_connected(patience).and_then(|()| {
                self.connection.call_blocking(Request::BlockServer(Box::new(request)), PATIENCE_LONG)
            })
        };
        match answer {
            Ok(answer) => {
                if self.away.lock().take().is_some() {
                    tracing::info!(address = self.address, "the block store answers again");
                }
                match answer {
                    Response::BlockServer(reply) => Ok(*reply),
                    _ => Err(self.failed("it answered something else")),
                }
            }
            Err(RpcError::Server(error @ (ServerError::Invalid(_) | ServerError::Storage(_)))) => {
                Err(self.failed(&error.to_string()))
            }
            Err(error @ (RpcError::Malformed(_) | RpcError::TooLarge { .. })) => {
                Err(self.failed(&error.to_string()))
            }
            Err(error) => Err(self.away(&error)),
        }
    }

    fn away(&self, error: &RpcError) -> BlockStoreError {
        // The last connection error is a better explanation than an expired deadline.
        let last = self.connection.last_error().filter(|_| matches!(error, RpcError::Deadline { .. }));
        let why = match last.as_ref().unwrap_or(error) {
            RpcError::Server(ServerError::Elsewhere(_)) => NOBODY.to_owned(),
            error => error.to_string(),
        };
        let error = BlockStoreError::Away { address: self.address.clone(), why };
        let mut away = self.away.lock();
        if away.is_none() {
            tracing::error!("{error}");
            // The call that failed has waited already, so the next one waits only briefly.
            *away = Instant::now().checked_sub(self.patience).or_else(|| Some(Instant::now()));
        }
        error
    }

    fn failed(&self, why: &str) -> BlockStoreError {
        BlockStoreError::Failed { address: self.address.clone(), why: why.to_owned() }
    }

    fn explain(&self, fault: BlockFault) -> BlockStoreError {
        match fault {
            BlockFault::Full => BlockStoreError::Full { address: self.address.clone() },
            BlockFault::OverQuota { used, limit } => BlockStoreError::OverQuota { used, limit },
            BlockFault::Busy => BlockStoreError::Busy,
            BlockFault::Refused(why) => BlockStoreError::Refused(why),
            BlockFault::Failed(why) => {
                let error = self.failed(&why);
                tracing::error!("{error}");
                error
            }
            BlockFault::OtherStore | BlockFault::OlderStore => {
                self.failed("it is not the store that was meant")
            }
        }
    }

    /// The store's figures, and those of its bucket if it has one.
    fn look(&self) -> Result<(BlockFigures, Option<BucketStatus>), BlockStoreError> {
        match self.call(Digest::ZERO, BlockCall::Figures)? {
            BlockResult::Figures(figures) => Ok((figures, None)),
            BlockResult::FiguresInBucket(figures, bucket) => Ok((figures, Some(bucket))),
            _ => self.unexpected(),
        }
    }

    fn unexpected<T>(&self) -> Result<T, BlockStoreError> {
        Err(self.failed("it answered something else"))
    }

    /// Checks a received block against its address. A block with other content counts as damaged.
    fn checked(&self, address: Digest, loaded: LoadedBlock) -> LoadedBlock {
        let way_out = "`holdfast server scrub` lists all that is damaged there; a device that still has the block gives it \
                       back when it stores it again, or restore that machine's backup";
        match loaded {
            LoadedBlock::Present(header, block) => {
                match block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX) {
                    Ok(_) => LoadedBlock::Present(header, block),
                    Err(error) => LoadedBlock::Damaged(format!(
                        "the block store {} gave wrong bytes for it: {error}; {way_out}",
                        self.address
                    )),
                }
            }
            LoadedBlock::Damaged(why) => {
                LoadedBlock::Damaged(format!("at the block store {}: {why}; {way_out}", self.address))
            }
            LoadedBlock::Absent => LoadedBlock::Absent,
        }
    }

    fn which(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        call: impl Fn(Vec<Digest>) -> BlockCall,
    ) -> Result<Vec<bool>, BlockStoreError> {
        let mut which = Vec::with_capacity(addresses.len());
        for addresses in addresses.chunks(BATCH_MAX) {
            match self.call(file_system, call(addresses.to_vec()))? {
                BlockResult::Flags(bits) => which.extend((0..addresses.len()).map(|at| bits.get(at))),
                _ => return self.unexpected(),
            }
        }
        Ok(which)
    }

    fn done(&self, file_system: Digest, call: BlockCall) -> Result<(), BlockStoreError> {
        match self.call(file_system, call)? {
            BlockResult::Done => Ok(()),
            _ => self.unexpected(),
        }
    }

    fn count(&self, file_system: Digest, call: BlockCall) -> Result<u32, BlockStoreError> {
        match self.call(file_system, call)? {
            BlockResult::Count(count) => Ok(count),
            _ => self.unexpected(),
        }
    }

    fn charge_list(
        &self,
        file_system: Digest,
        call: BlockCall,
    ) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        match self.call(file_system, call)? {
            BlockResult::Charges(charges) => Ok(charges
                .into_iter()
                .map(|(device, blocks, bytes)| (device, Charge { blocks, bytes }))
                .collect()),
            _ => self.unexpected(),
        }
    }
}

impl BlockStore for RemoteStore {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        let allowance = allowance.map(|allowance| StoreAllowance {
            devices: allowance.devices.clone(),
            bytes: allowance.bytes,
            reserve: allowance.reserve,
        });
        let mut left =
            blocks.into_iter().map(|(address, block)| AddressedBlock { address, block }).peekable();
        while left.peek().is_some() {
            let (mut blocks, mut bytes) = (Vec::new(), 0);
            while let Some(next) = left.next_if(|next| {
                blocks.is_empty()
                    || (bytes + stored_bytes(&next.block) <= STORE_BYTES && blocks.len() < BATCH_MAX)
            }) {
                bytes += stored_bytes(&next.block);
                blocks.push(next);
            }
            let allowance = allowance.clone();
            self.done(file_system, BlockCall::Store { owner, blocks, allowance, now_ns })?;
        }
        Ok(())
    }

    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError> {
        let (mut blocks, mut bytes): (Vec<LoadedBlock>, usize) = (Vec::with_capacity(addresses.len()), 0);
        while blocks.len() < addresses.len() {
            let room = bytes_max.saturating_sub(bytes);
            if room == 0 && !blocks.is_empty() {
                break;
            }
            let rest = &addresses[blocks.len()..];
            let wanted = rest[..rest.len().min(BATCH_MAX)].to_vec();
            let call = BlockCall::Load { addresses: wanted, bytes_max: room.min(LOAD_BYTES) as u32 };
            let BlockResult::Loaded(some) = self.call(file_system, call)? else { return self.unexpected() };
            if some.is_empty() || some.len() > rest.len() {
                return self.unexpected();
            }
            let first = blocks.is_empty();
            for (at, (loaded, address)) in some.into_iter().zip(rest).enumerate() {
                if let LoadedBlock::Present(_, block) = &loaded {
                    bytes += stored_bytes(block);
                }
                if bytes > bytes_max && !(first && at == 0) {
                    return Ok(blocks);
                }
                blocks.push(self.checked(*address, loaded));
            }
        }
        Ok(blocks)
    }

    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError> {
        let mut references = Vec::with_capacity(addresses.len());
        while references.len() < addresses.len() {
            let rest = &addresses[references.len()..];
            let wanted = rest[..rest.len().min(BATCH_MAX)].to_vec();
            match self.call(file_system, BlockCall::References(wanted))? {
                BlockResult::References(some) if !some.is_empty() && some.len() <= rest.len() => {
                    references.extend(some)
                }
                _ => return self.unexpected(),
            }
        }
        Ok(references)
    }

    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError> {
        self.which(file_system, addresses, BlockCall::Contains)
    }

    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError> {
        self.which(file_system, addresses, |addresses| BlockCall::Renew { addresses, now_ns })
    }

    fn dereference(
        &self,
        file_system: Digest,
        owner: DeviceId,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<u32, BlockStoreError> {
        self.count(file_system, BlockCall::Dereference { owner, addresses: addresses.to_vec(), now_ns })
    }

    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError> {
        self.done(file_system, BlockCall::Snapshot { now_ns })
    }

    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        let addresses = addresses.to_vec();
        self.done(file_system, BlockCall::Pin { holder, addresses, until_ns, now_ns })
    }

    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError> {
        let Hold { name, device, made_ns, roots } = hold;
        match self.call(file_system, BlockCall::Hold(HoldEntry { name, device, made_ns, roots }))? {
            BlockResult::Missing(missing) if missing.is_empty() => Ok(HoldOutcome::Held),
            BlockResult::Missing(missing) => Ok(HoldOutcome::Missing(missing)),
            _ => self.unexpected(),
        }
    }

    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError> {
        Ok(self.count(file_system, BlockCall::Unhold(name.to_owned()))? > 0)
    }

    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError> {
        let held = |HoldEntry { name, device, made_ns, roots }| Hold { name, device, made_ns, roots };
        match self.call(file_system, BlockCall::Holds)? {
            BlockResult::Holds(holds) => Ok(holds.into_iter().map(held).collect()),
            _ => self.unexpected(),
        }
    }

    fn list(&self, file_system: Digest, after: u64) -> Result<Vec<ListedBlock>, BlockStoreError> {
        match self.call(file_system, BlockCall::List { after })? {
            // A list that began again before `after` would make the caller loop for ever.
            BlockResult::Listed(listed) if listed.iter().all(|one| one.place > after) => Ok(listed),
            _ => self.unexpected(),
        }
    }

    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Result<Option<PinEntry>, BlockStoreError> {
        match self.call(file_system, BlockCall::Pinned { after })? {
            BlockResult::Pinned(pinned) if pinned.as_ref().is_none_or(|one| Some(one.holder) > after) => {
                Ok(pinned)
            }
            _ => self.unexpected(),
        }
    }

    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError> {
        let charges = self.charge_list(file_system, BlockCall::Charged(devices.to_vec()))?;
        Ok(charges.into_values().sum())
    }

    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        self.charge_list(file_system, BlockCall::Charges)
    }

    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError> {
        // This call fails or adds a doubt if the store is not the remembered one.
        self.call(file_system, BlockCall::Greet)?;
        if let Some(doubt) = self.note.lock().doubt.clone() {
            return Err(BlockStoreError::Doubtful { doubt });
        }
        let (roots, short) = (roots.to_vec(), short.iter().copied().collect());
        match self.call(file_system, BlockCall::Collect { roots, short, now_ns })? {
            BlockResult::Collected(collected) => Ok(CollectReport {
                marked: collected.marked,
                dropped: collected.dropped,
                dropped_bytes: collected.dropped_bytes,
                kept: collected.kept,
                kept_bytes: collected.kept_bytes,
                moved: collected.moved,
                removed_bytes: collected.removed_bytes,
                removed: Vec::new(),
                punched: Vec::new(),
                punched_bytes: 0,
                damaged: collected.damaged,
                missing: collected.missing,
            }),
            _ => self.unexpected(),
        }
    }

    fn sync(&self) -> Result<(), BlockStoreError> {
        // Every call was durable when it returned.
        Ok(())
    }

    fn scrub(&self, _progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError> {
        match self.call(Digest::ZERO, BlockCall::Scrub)? {
            BlockResult::Scrubbed { records, bytes, bad, bad_count } => {
                let bad = bad.into_iter().map(|bad| format!("at {}: {bad}", self.address)).collect();
                Ok(ScrubSummary { records, bytes, bad, bad_count })
            }
            _ => self.unexpected(),
        }
    }

    fn figures(&self) -> Result<BlockFigures, BlockStoreError> {
        Ok(self.look()?.0)
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn status(&self) -> Option<BlockStoreStatus> {
        let (figures, bucket) = self.look().ok().unzip();
        let doubt = self.note.lock().doubt.clone();
        Some(BlockStoreStatus {
            address: self.address.clone(),
            reached: figures.is_some(),
            doubt,
            figures,
            bucket: bucket.flatten(),
        })
    }
}
