//! Clients that tell each other their latest operations, with a server that forks them, or a peer that lies.
//!
//! What convicts is two receipts, so a server that has given the victim none since the fork can only withhold, and is
//! convicted by the first answer that it gives.
//!
//! The clients and the server are the real ones; what is said is taken from one client's floor and judged by the other's, as
//! the mount does it: what was not shown is asked for with an operation of its own. (Connections, and the pause, are tried
//! through real mounts in `crates/cli/tests/peers.rs`; who is lost is [`Roster`]'s to say, under virtual time.)
//!
//! The oracle knows what is true: whoever is convicted must have forked the two, whoever agrees must have been shown what
//! the peer was told, and only the server's receipts may convict it.

use super::oracle::Call;
use super::scene::{ALICE, BOB, DAVE, Scene, content, key_of};
use super::stage::Stage;
use holdfast_client::statement::{Conclusion, LabeledStatement, Limits, Statement, verify};
use holdfast_content::{DeviceId, MemoryBlocks, PrincipalId};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::members::Members;
use holdfast_protocol::peers::{DeviceProgress, Finding, Offence, Presence, Roster, judge};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::LogHead;
use holdfast_rpc::RpcError;
use holdfast_testing::eventually;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a victim waits for a server that stalls.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// What the server or the peer does to the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// Both are honest.
    Honest,
    /// Both are honest; the victim has not been shown the peer's operation yet.
    Behind,
    /// The server forks them for ever.
    Fork,
    /// The server forks them for ever, and does not answer the victim when it asks.
    ForkAndStall,
    /// The server forks them for ever, and the peer helps it by telling an old operation.
    ForkAndOldHead,
    /// The peer helps as before, and another peer on the other side is honest.
    ForkAndOneLiar,
    /// The peer tells an old operation.
    OldHead,
    /// The peer tells an operation that it altered, with the receipt of the true one.
    Altered,
    /// The peer signs an operation that no server has a receipt for, and a receipt of its own.
    FalseReceipt,
    /// The peer tells somebody else's operation.
    AnotherDevice,
    /// The peer tells an operation of another file system.
    AnotherFileSystem,
    /// The peer says that it has seen a million operations.
    LongerLog,
    /// The peer says so a hundred times.
    Flood,
    /// The peer falls silent.
    Silence,
    /// The peer logs out.
    Leaves,
}

use Meeting as M;

/// The outcome for the victim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Both have seen the same.
    Agrees,
    /// The peer is not believed; for the server this has no consequence.
    NotBelieved,
    /// What the peer says is not there; the only consequence is an operation that asks for it.
    Asked,
    /// The server is convicted, by a file that convinces others.
    Convicted,
    /// The server does not answer, and the victim reports that it is uncertain.
    Waits,
    /// The peer is lost: this is reported, or everything pauses.
    Lost,
    /// The peer has logged out.
    LoggedOut,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Agrees => "agrees",
            Outcome::NotBelieved => "not believed",
            Outcome::Asked => "asked for",
            Outcome::Convicted => "convicted",
            Outcome::Waits => "waits",
            Outcome::Lost => "lost",
            Outcome::LoggedOut => "logged out",
        })
    }
}

impl Meeting {
    /// All rows, in the order of the table.
    pub const ALL: [Meeting; 15] = [
        M::Honest,
        M::Behind,
        M::Fork,
        M::ForkAndStall,
        M::ForkAndOldHead,
        M::ForkAndOneLiar,
        M::OldHead,
        M::Altered,
        M::FalseReceipt,
        M::AnotherDevice,
        M::AnotherFileSystem,
        M::LongerLog,
        M::Flood,
        M::Silence,
        M::Leaves,
    ];

    /// The row in words, for the table.
    pub fn words(self) -> &'static str {
        match self {
            M::Honest => "all are honest",
            M::Behind => "all are honest; the victim was not shown the peer's operation yet",
            M::Fork => "the server forks them for ever",
            M::ForkAndStall => "the same, and it does not answer the victim, who has done nothing since",
            M::ForkAndOldHead => "the same, and the peer is in league with it: it tells an old operation",
            M::ForkAndOneLiar => "the same; then another peer tells the truth",
            M::OldHead => "the peer tells an old operation",
            M::Altered => "the peer tells an altered operation",
            M::FalseReceipt => "the peer makes the receipt itself",
            M::AnotherDevice => "the peer tells another device's operation",
            M::AnotherFileSystem => "the peer tells an operation in another file system",
            M::LongerLog => "the peer says that it has seen a million operations",
            M::Flood => "the same, a hundred times",
            M::Silence => "the peer falls silent",
            M::Leaves => "the peer logs out",
        }
    }

    /// The outcome that the row must have.
    pub fn expected(self) -> Outcome {
        match self {
            M::Honest | M::Behind | M::OldHead | M::ForkAndOldHead => Outcome::Agrees,
            M::Fork | M::ForkAndOneLiar => Outcome::Convicted,
            M::ForkAndStall => Outcome::Waits,
            M::Altered | M::FalseReceipt | M::AnotherDevice | M::AnotherFileSystem => Outcome::NotBelieved,
            M::LongerLog | M::Flood => Outcome::Asked,
            M::Silence => Outcome::Lost,
            M::Leaves => Outcome::LoggedOut,
        }
    }

    fn forks(self) -> bool {
        matches!(self, M::Fork | M::ForkAndStall | M::ForkAndOldHead | M::ForkAndOneLiar)
    }
}

/// What the victim does before it hears the peer.
pub const DOINGS: [(&str, Option<Call>); 4] = [
    ("is idle", None),
    ("has read", Some(Call::Read("second"))),
    ("has listed", Some(Call::List)),
    ("has made a file", Some(Call::Create("made"))),
];

/// How a peer's claims are judged: as clients do, or carelessly.
pub type Judge = fn(&Floor, &dyn Members, DeviceId, &DeviceProgress) -> Result<Finding, Offence>;

/// As clients do.
pub const REAL: Judge = judge;

/// Runs one row.
///
/// # Errors
/// In words: what must never come of anything.
pub fn run(meeting: Meeting, doing: Option<Call>, judge: Judge) -> Result<Outcome, String> {
    if matches!(meeting, M::Silence | M::Leaves) {
        return Ok(presence(meeting));
    }
    let mut stage = Stage::set(Duration::ZERO);
    stage.does(ALICE, Call::List);
    stage.does(BOB, Call::Stat("second"));
    stage.does(DAVE, Call::Stat("second"));
    let old = latest(&mut stage, BOB);
    if meeting.forks() && meeting != M::ForkAndStall {
        let other = stage.fork(0);
        stage.lead(ALICE, other);
    }
    if let Some(call) = doing {
        stage.does(ALICE, call);
    }
    if meeting == M::ForkAndStall {
        stage.mount_impatiently(ALICE, STALLED_AFTER);
        // An operation on its own side of the fork would convict the server at once.
        let other = stage.fork(0);
        stage.lead(ALICE, other);
        stage.lie(ALICE, Arc::new(|_, _| Err(RpcError::Deadline { maybe_sent: false })));
    }
    stage.does(BOB, Call::Write("target", content(200)));
    if meeting == M::Honest {
        stage.does(ALICE, Call::Stat("target"));
    }
    let mut said = latest(&mut stage, BOB);
    said_falsely(&mut stage, meeting, &old, &mut said);
    let times = if meeting == M::Flood { 100 } else { 1 };
    let mut asked = false;
    let mut found = Ok(Finding::Agrees);
    for _ in 0..times {
        found = hear(&mut stage, BOB, &said, judge, &mut asked);
    }
    if meeting == M::ForkAndOneLiar {
        let honest = latest(&mut stage, DAVE);
        found = hear(&mut stage, DAVE, &honest, judge, &mut false);
    }
    let outcome = outcome(&mut stage, meeting, &said, found)?;
    stage.verdict_of_the_oracle()?;
    Ok(outcome)
}

/// What a client tells of itself.
fn latest(stage: &mut Stage, who: usize) -> DeviceProgress {
    let engine = stage.honest(who).engine.clone();
    let mut before = 0;
    if who == DAVE {
        before = engine.floor().last();
        stage.does(DAVE, Call::Stat("target"));
    }
    engine.flush_commits().expect("it is told the truth");
    // What was looked at is committed before the operation that looked.
    let is_new = |floor: &Floor| floor.last() > before && DeviceProgress::of(floor).operation.is_some();
    eventually("it has its receipt", || is_new(&engine.floor()));
    DeviceProgress::of(&engine.floor())
}

/// What the peer tells instead.
fn said_falsely(stage: &mut Stage, meeting: Meeting, old: &DeviceProgress, said: &mut DeviceProgress) {
    let operation = said.operation.as_mut().expect("it has one");
    match meeting {
        M::OldHead | M::ForkAndOldHead | M::ForkAndOneLiar => *said = old.clone(),
        M::Altered => {
            let mut structure = operation.structure.value.clone();
            structure.forecast.vector.set(PrincipalId::Device(DeviceId(ALICE as u32)), 0);
            operation.structure = Signed::new(structure, &key_of(BOB));
        }
        M::FalseReceipt => {
            let mut structure = operation.structure.value.clone();
            structure.forecast.vector.set(PrincipalId::Device(DeviceId(ALICE as u32)), 0);
            let number = structure.number() + 1;
            structure.forecast.vector.set(PrincipalId::Device(DeviceId(BOB as u32)), number);
            operation.structure = Signed::new(structure, &key_of(BOB));
            let receipt = holdfast_protocol::message::Receipt {
                file_system: stage.scene.id(),
                device: DeviceId(BOB as u32),
                number,
                structure: holdfast_protocol::signed::Signable::digest(&operation.structure.value),
            };
            operation.receipt = Signed::new(receipt, &key_of(BOB));
        }
        M::AnotherDevice => *said = latest(stage, DAVE),
        M::AnotherFileSystem => operation.structure = Scene::foreign().former(BOB),
        M::LongerLog | M::Flood => said.log = LogHead { size: 1_000_000, root: Digest([9; 32]) },
        _ => {}
    }
}

/// Judges what a peer has told, and asks the server for what was not shown, as a mount does.
fn hear(
    stage: &mut Stage,
    who: usize,
    said: &DeviceProgress,
    judge: Judge,
    has_asked: &mut bool,
) -> Result<Finding, Offence> {
    let engine = stage.mounts[ALICE].as_ref().expect("it is mounted").engine.clone();
    let find = || judge(&engine.floor(), &*engine.membership(), DeviceId(who as u32), said);
    match find()? {
        // For a mere claim the server is asked once in twenty seconds.
        Finding::Unseen(_) if !std::mem::replace(has_asked, true) => {
            let before = engine.floor().last();
            if stage.call(ALICE, Call::Stat("second")).is_ok() {
                // The receipt of the operation just made is what convicts.
                let has_receipt =
                    |floor: &Floor| floor.last() > before && DeviceProgress::of(floor).operation.is_some();
                eventually("it has its receipt", || has_receipt(&engine.floor()));
            }
            find()
        }
        found => Ok(found),
    }
}

fn outcome(
    stage: &mut Stage,
    meeting: Meeting,
    said: &DeviceProgress,
    found: Result<Finding, Offence>,
) -> Result<Outcome, String> {
    let engine = stage.mounts[ALICE].as_ref().expect("it is mounted").engine.clone();
    let outcome = match found {
        Err(_) => Outcome::NotBelieved,
        Ok(Finding::Agrees) if meeting.forks() && meeting != M::ForkAndOldHead => {
            return Err("it agrees with who was shown something else".to_owned());
        }
        Ok(Finding::Agrees) => Outcome::Agrees,
        Ok(Finding::Unseen(_)) if meeting == M::ForkAndStall => {
            stage.tell_the_truth(ALICE);
            return match hear(stage, BOB, said, REAL, &mut false) {
                Ok(Finding::Convicted(_)) => Ok(Outcome::Waits),
                other => Err(format!("once it answers it is not convicted: {other:?}")),
            };
        }
        Ok(Finding::Unseen(_)) => Outcome::Asked,
        Ok(Finding::Convicted(_)) if !meeting.forks() => {
            return Err("an honest server is convicted".to_owned());
        }
        Ok(Finding::Convicted(_)) => {
            let met = match meeting {
                M::ForkAndOneLiar => latest(stage, DAVE).operation,
                _ => said.operation.clone(),
            };
            let near = MemoryBlocks::new(DigestKey::WELL_KNOWN);
            engine.membership().store(&mut &near).map_err(|error| error.to_string())?;
            let statement = Statement::of((*engine.floor()).clone(), None, &near);
            let testimony = LabeledStatement { label: "kept".to_owned(), made_ns: 0, statement, met };
            let verdict = verify(&[testimony], Limits { paths: 10, differences: 10 });
            let verdict = verdict.map_err(|why| format!("the evidence is refused: {why}"))?;
            if verdict.conclusion != Conclusion::ServerLied {
                return Err(format!("the evidence does not convict the server: {:?}", verdict.conclusion));
            }
            return Ok(Outcome::Convicted);
        }
    };
    match stage.call(ALICE, Call::Stat("second")) {
        Ok(_) => Ok(outcome),
        Err(refusal) => Err(format!("a peer's word stops it: {refusal:?}")),
    }
}

/// The peers that are present, by what was heard and when.
fn presence(meeting: Meeting) -> Outcome {
    const TIMEOUT_MS: u64 = 30_000;
    let (peer, mut roster) = (DeviceId(BOB as u32), Roster::new(TIMEOUT_MS));
    roster.handle_heard(0, peer, 1);
    if meeting == M::Leaves {
        roster.handle_logout(peer, 1);
    }
    assert!(roster.poll(TIMEOUT_MS - 1).is_empty(), "not before its time");
    roster.poll(TIMEOUT_MS);
    match roster.peers()[&peer].presence {
        Presence::Lost => {
            assert!(roster.is_anybody_lost());
            roster.handle_heard(TIMEOUT_MS + 1, peer, 1);
            assert!(!roster.is_anybody_lost(), "it is back");
            Outcome::Lost
        }
        _ => Outcome::LoggedOut,
    }
}

/// The table as Markdown, and the rows that are wrong.
pub fn table() -> (String, Vec<String>) {
    let columns: Vec<&str> = DOINGS.iter().map(|(words, _)| *words).collect();
    let mut text =
        format!("| | the victim {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    let mut wrong = Vec::new();
    for meeting in Meeting::ALL {
        let mut cells = Vec::new();
        for (words, call) in DOINGS {
            let result = run(meeting, call, REAL);
            if result.as_ref() != Ok(&meeting.expected()) {
                wrong.push(format!("{meeting:?}, the victim {words}: {result:?}"));
            }
            cells.push(result.map_or_else(|why| format!("WRONG: {why}"), |outcome| outcome.to_string()));
        }
        text.push_str(&format!("| {} | {} |\n", meeting.words(), cells.join(" | ")));
    }
    (text, wrong)
}
