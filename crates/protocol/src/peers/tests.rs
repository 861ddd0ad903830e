//! Honest histories never convict, whenever two devices meet. A fork always does, once both sides have made
//! an operation. A malicious peer convicts nobody but itself.

use super::*;
use crate::certificate::{Certificate, Path};
use crate::check::{check, check_look};
use crate::message::ServerKeys;
use crate::testing::random::Random;
use crate::testing::{A, B, C, Client, Stage, key, membership, receipt, server};
use holdfast_crypto::SigningKey;
use proptest::prelude::*;

/// A device that knows which server keys are listed.
fn client(device: DeviceId) -> Client {
    let mut client = Client::new(device);
    let superuser = key(DeviceId(0));
    let file_system = superuser.public().file_system_id();
    let list = ServerKeys { file_system, sequence: 1, keys: vec![server().public()] };
    client.floor.learn_server_keys(Signed::new(list, &superuser)).expect("the superuser's");
    client
}

/// A device with an operation on its way, perhaps.
#[derive(Clone)]
struct Member {
    client: Client,
    under_way: Option<(Signed<Certificate>, Signed<Structure>)>,
}

impl Member {
    fn new(device: DeviceId) -> Member {
        Member { client: client(device), under_way: None }
    }

    fn device(&self) -> DeviceId {
        self.client.floor.device
    }

    /// Has an operation ordered; it is committed by [`Member::commit`].
    fn order(&mut self, stage: &mut Stage) {
        if self.under_way.is_some() {
            return;
        }
        let certificate = self.client.declare(Path::Slow, Vec::new());
        let reply = stage.proven(&self.client.floor);
        let accepted = check(&self.client.floor, &membership(), &reply, &certificate.value).expect("honest");
        self.client.floor = accepted.floor;
        let structure = self.client.structure(&certificate.value, accepted.forecast);
        stage.order(&certificate);
        self.under_way = Some((certificate, structure));
    }

    /// Has it committed, and gets the receipt.
    fn commit(&mut self, stage: &mut Stage) {
        let Some((_, structure)) = self.under_way.take() else { return };
        stage.commit(&structure);
        let promise = receipt(&structure.value);
        self.client.floor.commit_own(structure, Some(promise));
    }

    fn operate(&mut self, stage: &mut Stage) {
        self.commit(stage);
        self.order(stage);
        self.commit(stage);
    }

    fn look(&mut self, stage: &Stage) {
        if self.under_way.is_none() {
            let reply = stage.proven(&self.client.floor);
            self.client.floor = check_look(&self.client.floor, &membership(), &reply).expect("honest");
        }
    }

    fn hears(&self, peer: &Member) -> Finding {
        let latest = DeviceProgress::of(&peer.client.floor);
        judge(&self.client.floor, &membership(), peer.device(), &latest).expect("an honest peer")
    }
}

fn members() -> [Member; 3] {
    [A, B, C].map(Member::new)
}

/// Operations of several devices on one branch.
fn live(random: &mut Random, members: &mut [Member], stage: &mut Stage) {
    let number = random.below(members.len() as u64) as usize;
    let member = &mut members[number];
    match random.below(5) {
        0 => member.look(stage),
        1 => member.order(stage),
        2 => member.commit(stage),
        _ => member.operate(stage),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(holdfast_testing::setting("HOLDFAST_SEEDS", 100) as u32))]

    /// Proves: with an honest server no meeting convicts anybody, and after a look at the present view
    /// everything that the peer sent is in it.
    #[test]
    fn honest_histories_agree(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (mut members, mut stage) = (members(), Stage::new());
        for _ in 0..60 {
            live(&mut random, &mut members, &mut stage);
            let (one, other) = (random.below(3) as usize, random.below(3) as usize);
            if one == other {
                continue;
            }
            let found = members[one].hears(&members[other]);
            prop_assert!(!matches!(found, Finding::Convicted(_)), "{found:?}");
            if matches!(found, Finding::Unseen(_)) {
                let latest = DeviceProgress::of(&members[other].client.floor);
                let is_free = members[one].under_way.is_none();
                members[one].look(&stage);
                let floor = &members[one].client.floor;
                let found = judge(floor, &membership(), members[other].device(), &latest);
                prop_assert!(!is_free || found == Ok(Finding::Agrees), "{found:?}");
            }
        }
    }

    /// Proves: whatever happened before and since on either branch, if one side of a fork has made an
    /// operation since, its peer notices that it has not seen it. When the peer has made one of its own, both
    /// convict the server.
    #[test]
    fn forks_are_seen_at_a_meeting(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (mut members, mut stage) = (members(), Stage::new());
        for _ in 0..random.below(20) {
            live(&mut random, &mut members, &mut stage);
        }
        for member in &mut members {
            member.commit(&mut stage);
        }
        let mut branch = stage.clone();
        let ([one, rest @ ..], [other]) = members.split_at_mut(2) else { unreachable!("three of them") };
        for _ in 0..random.below(10) {
            live(&mut random, rest, &mut stage);
            live(&mut random, std::slice::from_mut(other), &mut branch);
        }
        other.commit(&mut branch);
        one.operate(&mut stage);
        let before = other.hears(one);
        prop_assert!(matches!(before, Finding::Unseen(_) | Finding::Convicted(_)), "{before:?}");
        other.look(&branch);
        let looked = other.hears(one);
        prop_assert!(matches!(looked, Finding::Unseen(_) | Finding::Convicted(_)), "{looked:?}");
        other.operate(&mut branch);
        for found in [other.hears(one), one.hears(other)] {
            prop_assert!(matches!(found, Finding::Convicted(_)), "{found:?}");
        }
    }

    /// Proves: words that were tampered with are refused, or found to say what the untampered ones say.
    #[test]
    fn tampered_words_convict_nobody(position in any::<usize>(), change in 1u8..) {
        let (mut members, mut stage) = (members(), Stage::new());
        for member in &mut members {
            member.operate(&mut stage);
        }
        let [one, other, _] = &members;
        let mut bytes = encode(&PeerMessage::Progress(Box::new(DeviceProgress::of(&other.client.floor))));
        let position = position % bytes.len();
        bytes[position] ^= change;
        if let Ok(PeerMessage::Progress(latest)) = holdfast_crypto::decode(&bytes) {
            let found = judge(&one.client.floor, &membership(), other.device(), &latest);
            prop_assert!(!matches!(found, Ok(Finding::Convicted(_))), "{found:?}");
        }
    }
}

/// Proves: a peer that sends no receipt, another device's operation, or an unsigned one is refused, and the
/// server is not blamed, whatever contradictions there are.
#[test]
fn a_peer_alone_convicts_nobody() {
    let [mut one, mut other, third] = members();
    let mut stage = Stage::new();
    one.operate(&mut stage);
    let mut branch = stage.clone();
    one.operate(&mut stage);
    other.operate(&mut branch);
    let said = DeviceProgress::of(&other.client.floor);
    let judged = |latest: &DeviceProgress, peer| judge(&one.client.floor, &membership(), peer, latest);
    assert!(matches!(judged(&said, B), Ok(Finding::Convicted(_))), "with the receipt it does");
    let with = |change: &dyn Fn(&mut AcknowledgedOperation)| {
        let mut changed = said.clone();
        change(changed.operation.as_mut().expect("it has one"));
        changed
    };
    let promised_by_a_stranger = with(&|operation| {
        operation.receipt = Signed::new(operation.receipt.value.clone(), &SigningKey::from_seed(&[9; 32]));
    });
    assert_eq!(judged(&promised_by_a_stranger, B), Err(Offence::BadReceipt));
    assert_eq!(judged(&said, third.device()), Err(Offence::AnotherDevice(B)));
    let unsigned = with(&|operation| operation.structure.value.handles.clear());
    assert!(matches!(judged(&unsigned, B), Err(Offence::NotAuthentic(_))));
    // An invented log is a reason to ask the server, and no more.
    let invented = DeviceProgress { operation: None, log: LogHead { size: u64::MAX, root: Digest::ZERO } };
    assert_eq!(judged(&invented, B), Ok(Finding::Unseen(UnseenState::Log(u64::MAX))));
}

/// Proves: a beacon is valid for one file system, a knock for one file system and one key; shorter, longer or
/// altered ones are invalid.
#[test]
fn beacons_and_knocks() {
    let (ours, theirs) = (Digest([1; 32]), Digest([2; 32]));
    let beacon = Beacon { device: B, port: 7443 };
    let bytes = beacon.to_bytes(&ours, [5; SALT_BYTES]);
    assert_eq!(Beacon::read(&ours, &bytes), Some(beacon));
    assert_eq!(Beacon::read(&theirs, &bytes), None);
    assert_eq!(Beacon::read(&ours, &bytes[1..]), None);
    assert!(!bytes.windows(32).any(|window| window == ours.0), "the id itself is not in it");
    for position in 0..bytes.len() {
        let mut altered = bytes;
        altered[position] ^= 1;
        assert_eq!(Beacon::read(&ours, &altered), None, "{position}");
    }
    let (me, you) = (Digest([3; 32]), Digest([4; 32]));
    let knocked = knock(&ours, &you, [6; SALT_BYTES]);
    assert!(is_knock(&ours, &you, &knocked));
    assert!(!is_knock(&ours, &me, &knocked) && !is_knock(&theirs, &you, &knocked));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Proves: the bytes of beacons and knocks, which are sent in plain form, stay the same.
#[test]
fn golden_beacon_and_knock() {
    let beacon = Beacon { device: B, port: 7443 }.to_bytes(&Digest([1; 32]), [5; SALT_BYTES]);
    assert_eq!(hex(&beacon), GOLDEN_BEACON);
    assert_eq!(hex(&knock(&Digest([1; 32]), &Digest([4; 32]), [6; SALT_BYTES])), GOLDEN_KNOCK);
}
const GOLDEN_BEACON: &str = concat!(
    "68667065657200010505050505050505050505050505050502000000131d5744c32f65fc42ae620d63ec49d5c4107bcc",
    "8f9e383a8dba6c2859111fc56f42"
);
const GOLDEN_KNOCK: &str =
    "06060606060606060606060606060606259244444156e10060466baae3df59e59be27385240d8e56696cd819198dcd75";

/// Proves: only a device that was met can be lost, and one that logged out is not. Late messages of an ended
/// run change nothing, and the next run is met again.
#[test]
fn who_is_lost() {
    let mut roster = Roster::new(30);
    roster.handle_login(A, 1);
    assert_eq!(roster.poll(1_000_000), [], "never met");
    let met = |before| Some(Change { device: A, before, presence: Presence::Met });
    assert_eq!(roster.handle_heard(0, A, 1), met(Presence::LoggedIn));
    assert_eq!(roster.handle_heard(10, A, 1), None);
    assert_eq!(roster.poll(39), []);
    assert_eq!(roster.poll(40), [Change { device: A, before: Presence::Met, presence: Presence::Lost }]);
    assert!(roster.is_anybody_lost());
    assert_eq!(roster.handle_heard(50, A, 1), met(Presence::Lost), "it is back");
    assert!(!roster.is_anybody_lost());
    assert_eq!(roster.poll(80).len(), 1);
    assert_eq!(roster.stop_waiting_for_lost(), [A]);
    assert!(!roster.is_anybody_lost());
    assert_eq!(roster.poll(1_000), [], "not waited for until it is met again");
    assert_eq!(roster.handle_heard(1_000, A, 1), met(Presence::LoggedIn));
    assert_eq!(roster.handle_logout(A, 7), None, "another run's");
    assert_eq!(
        roster.handle_logout(A, 1),
        Some(Change { device: A, before: Presence::Met, presence: Presence::LoggedOut })
    );
    assert_eq!(roster.handle_heard(1_001, A, 1), None, "a late word");
    roster.handle_login(A, 1);
    assert_eq!(roster.peers()[&A].presence, Presence::LoggedOut, "a record that is out of date");
    assert_eq!(roster.poll(1_000_000), []);
    assert_eq!(roster.handle_heard(1_000_000, A, 2), met(Presence::LoggedIn), "a new run");
    roster.retain(|device| device != A);
    assert!(roster.peers().is_empty());
}
