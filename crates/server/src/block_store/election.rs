//! Assigns the stores of one bucket to several block servers, through etcd.
//!
//! ```text
//! PREFIX/blocks/BUCKET/PREFIX/shards           in how many shards the blocks of each server are; stays
//! PREFIX/blocks/BUCKET/PREFIX/member/INSTANCE  "HOST INSTANCE KEY" of a block server that runs
//! PREFIX/blocks/BUCKET/PREFIX/seat/SERVER/N    "HOST INSTANCE KEY" of the holder of shard N of a server
//! ```
//!
//! Keys of members and seats end with the lease of their block server.
//! Slashes within the bucket's prefix are written `%`.
//!
//! Invariants:
//! - etcd decides which block server opens a store. Whether its writes count is decided by the owner's note
//!   of each store in the bucket, which is read for each acknowledgement. So two block servers that both
//!   believe they have a seat do no harm, and one that cannot reach etcd goes on.
//! - A block server takes no more than a fair share of the seats while others run that could take them.

use super::bucket;
use super::location::machine_name;
use super::server_error::{BlockServerError, ElectionError};
use crate::data::DataDirectory;
use crate::order::etcd::Lease;
use holdfast_crypto::PublicKey;
use holdfast_etcd::{Access, Compare, EtcdError, Gateway, Get, Keys, Kv, Pair, Revision, Step, Transaction};
use holdfast_protocol::block_server::{SHARDS_MAX, Shard};
use holdfast_tiered::{BucketAddress, Durability};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often, at the start, a block server tries to reach etcd.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// One store: a shard of a server's blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Seat {
    /// The consistency server whose blocks the store has.
    pub(super) server: PublicKey,
    /// Which shard of them.
    pub(super) shard: Shard,
}

/// A block server that takes part in the assignment of a bucket's stores.
pub struct Candidate {
    kv: Box<dyn Kv>,
    /// The prefix of all keys.
    below: String,
    instance: String,
    /// "HOST INSTANCE KEY"
    name: String,
    /// How many shards the operator wants; `None`: as many as there are, or one.
    wanted: Option<u16>,
    lease: Mutex<Option<CandidateLease>>,
}

/// A lease in etcd with the keys that end with it.
struct CandidateLease {
    lease: Arc<Lease>,
    is_member: bool,
}

/// Who has which seat, and the block servers that run.
#[derive(Default)]
pub(super) struct SeatMap {
    /// Block servers that run and could take seats, by instance.
    pub(super) members: BTreeSet<String>,
    /// Seats that are taken, each with its holder.
    pub(super) seats: BTreeMap<String, SeatHolder>,
}

/// The block server that has a seat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SeatHolder {
    pub(super) host: String,
    pub(super) instance: String,
    key: String,
}

impl SeatHolder {
    /// Parses the value of a seat's key, which may be any bytes.
    fn of(value: &[u8]) -> SeatHolder {
        let text: String =
            String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).take(512).collect();
        let mut words = text.split(' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        SeatHolder { host: word(), instance: word(), key: word() }
    }
}

impl Candidate {
    /// A candidate for the block server with the data directory `data`, whose blocks are in the bucket
    /// `blocks`, or else in the one that the data directory remembers. It reaches etcd by `access`. `shards`:
    /// how many shards the operator wants; `None`: as many as there are, or one.
    ///
    /// # Errors
    /// The blocks are in no bucket, or are acknowledged before the bucket has them. Or the data directory or
    /// the file with the etcd credentials cannot be used.
    pub fn new(
        data: &Path,
        blocks: Option<&BucketAddress>,
        access: &Access,
        login: Option<&Path>,
        shards: Option<u16>,
    ) -> Result<Candidate, BlockServerError> {
        let gateway = Gateway::new(access, login).map_err(ElectionError::from)?;
        Candidate::over(data, blocks, Box::new(gateway), &access.prefix, shards)
    }

    /// Like [`Candidate::new`], but over any key-value store, with all keys below `prefix`.
    ///
    /// # Errors
    /// As for [`Candidate::new`].
    pub fn over(
        data: &Path,
        blocks: Option<&BucketAddress>,
        kv: Box<dyn Kv>,
        prefix: &str,
        shards: Option<u16>,
    ) -> Result<Candidate, BlockServerError> {
        let key = DataDirectory::bare(data)?.server_key()?.public();
        let bucket = bucket::bucket_of(data, blocks)?;
        let Some(bucket) = bucket.filter(|bucket| bucket.durability == Durability::Object) else {
            return Err(ElectionError::NotInBucket.into());
        };
        if shards.is_some_and(|shards| !(1..=SHARDS_MAX).contains(&shards)) {
            return Err(ElectionError::ShardCount { max: SHARDS_MAX }.into());
        }
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(ElectionError::Random)?;
        let instance = format!("{:016x}", u64::from_le_bytes(instance));
        let name = format!("{} {instance} {key}", machine_name());
        let below = below(prefix, &bucket);
        Ok(Candidate { kv, below, instance, name, wanted: shards, lease: Mutex::default() })
    }

    /// How many shards there are, by etcd, or by the operator if etcd has no number yet. Waits until etcd
    /// answers. `report` is called with the reason each time that reason changes.
    ///
    /// # Errors
    /// etcd refuses; or it has another number than the operator wants; or another block server has another
    /// key, so that servers would not accept this one in its place.
    pub fn shards(&self, report: &mut dyn FnMut(&str)) -> Result<u16, ElectionError> {
        let mut last = String::new();
        loop {
            let news = match self.agreed() {
                Ok(shards) => return Ok(shards),
                Err(ElectionError::Etcd(EtcdError::Away(why))) => {
                    format!("etcd cannot be reached, so this one stands by: {why}")
                }
                Err(error) => return Err(error),
            };
            if news != last {
                report(&news);
                last = news;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn agreed(&self) -> Result<u16, ElectionError> {
        for pair in self.kv.get(&Get::all(Keys::below(&self.below)))? {
            let is_at = |what: &str| pair.key.starts_with(format!("{}{what}/", self.below).as_bytes());
            let other = SeatHolder::of(&pair.value);
            let own = SeatHolder::of(self.name.as_bytes()).key;
            if (is_at("member") || is_at("seat")) && other.key != own {
                return Err(ElectionError::OtherKey { host: other.host, key: other.key, own });
            }
        }
        let key = self.key_of_shards();
        let found = self.kv.get(&Get::one(key.clone()))?;
        let Some(pair) = found.first() else { return Ok(self.wanted.unwrap_or(1)) };
        let found = std::str::from_utf8(&pair.value).ok().and_then(|text| text.parse().ok());
        match (found, self.wanted) {
            (None, _) => Err(ElectionError::NoNumber(String::from_utf8_lossy(&key).into_owned())),
            (Some(there), Some(wanted)) if there != wanted => {
                Err(ElectionError::OtherShards { there, wanted })
            }
            (Some(there), _) => Ok(there),
        }
    }

    /// Writes the number of shards to etcd, once the bucket agrees; the first block server decides it.
    ///
    /// # Errors
    /// As for [`Candidate::shards`].
    pub(super) fn settle(&self, shards: u16) -> Result<(), ElectionError> {
        let key = self.key_of_shards();
        let transaction = Transaction {
            compares: vec![Compare::Created(key.clone(), 0)],
            steps: vec![Step::Put(key, shards.to_string().into_bytes(), None)],
            otherwise: Vec::new(),
        };
        self.kv.transact(&transaction)?;
        match self.shards(&mut |news| tracing::warn!("{news}"))? {
            agreed if agreed == shards => Ok(()),
            there => Err(ElectionError::BegunOtherwise { there, wanted: shards }),
        }
    }

    fn key_of_shards(&self) -> Vec<u8> {
        format!("{}shards", self.below).into_bytes()
    }

    /// Renews the lease, and announces whether this block server can take seats, or only keeps those it has.
    pub(super) fn keep(&self, is_able: bool) -> Result<(), EtcdError> {
        let mut held = self.lease.lock();
        let is_alive = match &*held {
            Some(held) => held.lease.keep_alive(&*self.kv)?,
            None => false,
        };
        if !is_alive {
            *held = None;
            *held = Some(CandidateLease { lease: Arc::new(Lease::granted(&*self.kv)?), is_member: false });
        }
        let Some(held) = &mut *held else { return Ok(()) };
        if held.is_member == is_able {
            return Ok(());
        }
        let key = format!("{}member/{}", self.below, self.instance).into_bytes();
        let step = match is_able {
            true => Step::Put(key, self.name.clone().into_bytes(), Some(held.lease.id())),
            false => Step::Delete(Keys::One(key)),
        };
        self.kv.transact(&Transaction { steps: vec![step], ..Transaction::default() })?;
        held.is_member = is_able;
        Ok(())
    }

    /// Reads the holders of all seats.
    pub(super) fn look(&self) -> Result<SeatMap, EtcdError> {
        let mut seat_map = SeatMap::default();
        for Pair { key, value, .. } in self.kv.get(&Get::all(Keys::below(&self.below)))? {
            let key = String::from_utf8_lossy(&key).into_owned();
            let Some(rest) = key.strip_prefix(&self.below) else { continue };
            if let Some(instance) = rest.strip_prefix("member/") {
                seat_map.members.insert(instance.to_owned());
            } else if rest.starts_with("seat/") {
                seat_map.seats.insert(rest.to_owned(), SeatHolder::of(&value));
            }
        }
        Ok(seat_map)
    }

    /// The block server that has a seat.
    pub(super) fn holder<'a>(&self, seat_map: &'a SeatMap, seat: &Seat) -> Option<&'a SeatHolder> {
        seat_map.seats.get(&seat_name(seat))
    }

    /// Whether a holder is this block server.
    pub(super) fn is_own(&self, other: &SeatHolder) -> bool {
        other.instance == self.instance
    }

    /// Takes a free seat. Returns the revision since which this block server has it, or `None` if another one
    /// was first.
    pub(super) fn take(&self, seat: &Seat) -> Result<Option<Revision>, EtcdError> {
        let Some(lease) = self.lease.lock().as_ref().map(|held| held.lease.id()) else { return Ok(None) };
        let key = self.key(seat);
        let done = self.kv.transact(&Transaction {
            compares: vec![Compare::Created(key.clone(), 0)],
            steps: vec![Step::Put(key, self.name.clone().into_bytes(), Some(lease))],
            otherwise: Vec::new(),
        })?;
        Ok(done.succeeded.then_some(done.revision))
    }

    /// Leaves a seat that this block server has had since revision `since`.
    pub(super) fn leave(&self, seat: &Seat, since: Revision) {
        let key = self.key(seat);
        let transaction = Transaction {
            compares: vec![Compare::Created(key.clone(), since)],
            steps: vec![Step::Delete(Keys::One(key))],
            otherwise: Vec::new(),
        };
        if let Err(error) = self.kv.transact(&transaction) {
            tracing::warn!(%error, "others wait until the lease has ended");
        }
    }

    /// Leaves all seats, so that others need not wait for the lease to end.
    pub(super) fn resign(&self) {
        let Some(held) = self.lease.lock().take() else { return };
        if let Err(error) = self.kv.revoke(held.lease.id()) {
            tracing::warn!(%error, "others wait until the lease has ended");
        }
    }

    fn key(&self, seat: &Seat) -> Vec<u8> {
        format!("{}{}", self.below, seat_name(seat)).into_bytes()
    }
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("name", &self.name).finish_non_exhaustive()
    }
}

fn below(prefix: &str, bucket: &BucketAddress) -> String {
    let within = bucket.prefix.trim_matches('/').replace('/', "%");
    format!("{prefix}/blocks/{}/{within}/", bucket.bucket)
}

fn seat_name(seat: &Seat) -> String {
    format!("seat/{}/{:05}", seat.server, seat.shard.number)
}

/// Which seats a block server takes and gives up.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    /// The free seats that it takes.
    pub(super) take: Vec<Seat>,
    /// The seats of its own that it gives up.
    pub(super) give: Vec<Seat>,
}

/// Decides for a block server that has the seats `own`. `all`: number of seats; `free`: those that nobody
/// has; `members`: number of block servers that run.
pub(super) fn decide(all: usize, own: &[Seat], free: &[Seat], members: usize) -> Decision {
    let share = all.div_ceil(members.max(1));
    Decision {
        take: free.iter().take(share.saturating_sub(own.len())).copied().collect(),
        // It gives up its last seats, because others take the first free ones.
        give: own.iter().skip(share).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::SigningKey;

    fn seats(count: u16) -> Vec<Seat> {
        let server = SigningKey::from_seed(&[1; 32]).public();
        (0..count).map(|number| Seat { server, shard: Shard { number, of: count } }).collect()
    }

    /// Proves: as block servers start and end, after a few rounds every seat is taken and none of them has
    /// more than one seat more than a fair share; then nothing changes any more.
    #[test]
    fn seats_are_shared() {
        for count in [1, 2, 7, 8, 64] {
            let all = seats(count);
            let mut holders: BTreeMap<Seat, usize> = BTreeMap::new();
            // The members that run, in turn.
            for members in [&[0][..], &[0, 1], &[0, 1, 2], &[1, 2], &[2], &[2, 3, 4, 5], &[0, 5]] {
                holders.retain(|_, holder| members.contains(holder));
                let mut is_quiet = false;
                for _ in 0..4 {
                    is_quiet = true;
                    for me in members {
                        let own: Vec<Seat> = holders
                            .iter()
                            .filter(|(_, holder)| *holder == me)
                            .map(|(seat, _)| *seat)
                            .collect();
                        let free: Vec<Seat> =
                            all.iter().filter(|seat| !holders.contains_key(seat)).copied().collect();
                        let decision = decide(all.len(), &own, &free, members.len());
                        is_quiet &= decision == Decision::default();
                        holders.retain(|seat, _| !decision.give.contains(seat));
                        holders.extend(decision.take.iter().map(|seat| (*seat, *me)));
                    }
                }
                assert!(is_quiet, "{count} seats, {members:?}: {holders:?}");
                assert_eq!(holders.len(), all.len());
                let share = all.len().div_ceil(members.len());
                let has = |me: &usize| holders.values().filter(|holder| *holder == me).count();
                assert!(members.iter().all(|me| has(me) <= share), "{count} seats, {members:?}: {holders:?}");
            }
        }
    }
}
