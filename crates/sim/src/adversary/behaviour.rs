//! The behaviours of the adversary: how each is prepared, and the verdict that it must have.

use super::oracle::{Call, TreePosition};
use super::scene::{ALICE, BOB, CAROL, DAVE, NAMES, ROOT, Scene, content};
use super::stage::{Stage, about_grants, about_views, denials};
use super::witness::Witness;
use super::world::{Habits, Image, Link, Machine, Server, server_key};
use super::{forge, restored, warrants};
use holdfast_client::remote::Remote;
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use holdfast_log::simulated::Crash;
use holdfast_protocol::leases::{LeaseGrant, Recall, Withheld};
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::PendingEntry;
use holdfast_rpc::RpcError;
use holdfast_testing::PATIENCE;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A behaviour of the adversary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    /// Is honest.
    Honest,
    /// Flips a bit of files' data.
    FlipData,
    /// Flips a bit of tables, inodes, directories.
    FlipMetadata,
    /// Serves another valid block of data.
    SwapData,
    /// Serves another valid table, inode or directory.
    SwapMetadata,
    /// Cuts data short.
    CutData,
    /// Serves a few bytes that expand to a gigabyte.
    Bomb,
    /// Says that it lost data.
    WithholdData,
    /// Says that it lost tables, inodes, directories.
    WithholdMetadata,
    /// Omits directory entries.
    OmitEntries,
    /// Doubles directory entries.
    DoubleEntries,
    /// Rolls one device's files back.
    RollBackFile,
    /// Rolls everything back.
    RollBackAll,
    /// Forks two users, then leaks an operation across.
    LeakAcrossFork,
    /// Forks for ever, where a witness is trusted.
    ForkForEver,
    /// Drops a pending operation that was seen.
    DropPending,
    /// Hides a commit, shows an abort.
    HideCommit,
    /// Takes an operation, says that it did not.
    AbortAcknowledged,
    /// Repeats earlier answers.
    ReplayAnswers,
    /// Is sent earlier requests again.
    ReplayRequests,
    /// Reorders pending operations.
    ReorderPending,
    /// Shows what a revoked key signed since, back-dated.
    BackDateRevoked,
    /// Hides a revocation.
    HideRevocation,
    /// Substitutes a user's key.
    SubstituteKey,
    /// Shows a forged table under a member's signature.
    ForgedTable,
    /// Shows a member's signature on another user's table.
    AnothersTable,
    /// Shows the group's table by who is no member.
    LaunderedTable,
    /// Collects garbage as if years had passed.
    CollectGarbage,
    /// Breaks a lease.
    BreakLease,
    /// Recalls all leases, all the time.
    RecallFalsely,
    /// Says that others hold everything exclusively.
    WithholdFalsely,
    /// Grants one client no leases, and lets it wait.
    Starve,
    /// Forgets what it acknowledged.
    ForgetAcknowledged,
    /// Chooses a version of no time.
    DowngradeVersion,
    /// Shows an old list of server keys.
    DowngradeServerKeys,
    /// Sends oversized proofs.
    OversizedProof,
    /// Sends an oversized view.
    OversizedView,
    /// Serves another file system.
    FalseFileSystem,
    /// Shows a structure from another file system.
    ForeignStructure,
    /// Is honest; another client never commits.
    NeverCommits,
    /// Is honest; the device's state was cloned.
    ClonedState,
    /// Is honest; loses power and recovers.
    CrashAndRecover,
    /// Is honest; another machine takes over.
    FailOver,
    /// Drips its answers.
    SlowDrip,
    /// Stalls.
    Stall,
    /// Has its clock jump.
    ClockJumps,
    /// Is put back, as its superuser declares.
    RestoreDeclared,
    /// Is put back as declared, and hides it from some.
    RestoreHidden,
    /// Is put back, and withholds the declaration.
    RestoreWithheld,
    /// Goes back to before a declared restore.
    RestoreUndone,
    /// Goes back a second time, under the old declaration.
    RestoreReplayed,
    /// Serves another state than was declared.
    RestoreOtherState,
    /// Has a restore of another branch declared.
    RestoreOfFork,
    /// Shows a restore that another file system's superuser declared.
    RestoreOfAnother,
    /// Is honest; a warrant is submitted twice and sent again.
    WarrantTwice,
    /// Is honest; a warrant comes after what it names was revoked.
    WarrantLate,
    /// And a member bring in a warrant all the same.
    WarrantOvertaken,
    /// And a member alter a warrant.
    WarrantAltered,
    /// Orders a warrant before the change that overtook it.
    WarrantReordered,
}

/// The verdict that a behaviour must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No alarm, and true answers.
    Honest,
    /// A victim that meets the behaviour is refused that file, with evidence; others get true answers.
    Data,
    /// The victim stops: at once, at the next call, or when the two sides of a fork meet.
    Order,
    /// A victim that has been there before stops; to others the behaviour contradicts nothing that they could know.
    Memory,
    /// Clients go on from what is left, without an alarm.
    Restored,
    /// No answer for a time, then true ones.
    Denial,
    /// The server is refused before anything is asked of it.
    Greeting,
    /// Not noticed until a bound has passed.
    Bounded,
}

impl Kind {
    /// Whether the behaviour is about what happened, and not about single blocks or about time.
    pub fn is_about_order(self) -> bool {
        matches!(self, Kind::Order | Kind::Memory | Kind::Restored)
    }
}

use Behaviour as B;

impl Behaviour {
    /// All behaviours, in the order of the table.
    pub const ALL: [Behaviour; 59] = [
        B::Honest,
        B::FlipData,
        B::FlipMetadata,
        B::SwapData,
        B::SwapMetadata,
        B::CutData,
        B::Bomb,
        B::WithholdData,
        B::WithholdMetadata,
        B::OmitEntries,
        B::DoubleEntries,
        B::RollBackFile,
        B::RollBackAll,
        B::LeakAcrossFork,
        B::ForkForEver,
        B::DropPending,
        B::HideCommit,
        B::AbortAcknowledged,
        B::ReplayAnswers,
        B::ReplayRequests,
        B::ReorderPending,
        B::BackDateRevoked,
        B::HideRevocation,
        B::SubstituteKey,
        B::ForgedTable,
        B::AnothersTable,
        B::LaunderedTable,
        B::CollectGarbage,
        B::BreakLease,
        B::RecallFalsely,
        B::WithholdFalsely,
        B::Starve,
        B::ForgetAcknowledged,
        B::DowngradeVersion,
        B::DowngradeServerKeys,
        B::OversizedProof,
        B::OversizedView,
        B::FalseFileSystem,
        B::ForeignStructure,
        B::NeverCommits,
        B::ClonedState,
        B::CrashAndRecover,
        B::FailOver,
        B::SlowDrip,
        B::Stall,
        B::ClockJumps,
        B::RestoreDeclared,
        B::RestoreHidden,
        B::RestoreWithheld,
        B::RestoreUndone,
        B::RestoreReplayed,
        B::RestoreOtherState,
        B::RestoreOfFork,
        B::RestoreOfAnother,
        B::WarrantTwice,
        B::WarrantLate,
        B::WarrantOvertaken,
        B::WarrantAltered,
        B::WarrantReordered,
    ];

    /// The behaviour in words, for the table.
    pub fn words(self) -> &'static str {
        match self {
            B::Honest => "is honest",
            B::FlipData => "flips a bit of files' data",
            B::FlipMetadata => "flips a bit of tables, inodes, directories",
            B::SwapData => "serves another valid block of data",
            B::SwapMetadata => "serves another valid table, inode or directory",
            B::CutData => "cuts data short",
            B::Bomb => "serves a few bytes that expand to a gigabyte",
            B::WithholdData => "says that it lost data",
            B::WithholdMetadata => "says that it lost tables, inodes, directories",
            B::OmitEntries => "omits directory entries",
            B::DoubleEntries => "doubles directory entries",
            B::RollBackFile => "rolls one device's files back",
            B::RollBackAll => "rolls everything back",
            B::LeakAcrossFork => "forks two users, then leaks an operation across",
            B::ForkForEver => "forks for ever, where a witness is trusted",
            B::DropPending => "drops a pending operation that was seen",
            B::HideCommit => "hides a commit, shows an abort",
            B::AbortAcknowledged => "takes an operation, says that it did not",
            B::ReplayAnswers => "repeats earlier answers",
            B::ReplayRequests => "is sent earlier requests again",
            B::ReorderPending => "reorders pending operations",
            B::BackDateRevoked => "shows what a revoked key signed since, back-dated",
            B::HideRevocation => "hides a revocation",
            B::SubstituteKey => "substitutes a user's key",
            B::ForgedTable => "shows a forged table under a member's signature",
            B::AnothersTable => "shows a member's signature on another user's table",
            B::LaunderedTable => "shows the group's table by who is no member",
            B::CollectGarbage => "collects garbage as if years had passed",
            B::BreakLease => "breaks a lease",
            B::RecallFalsely => "recalls all leases, all the time",
            B::WithholdFalsely => "says that others hold everything exclusively",
            B::Starve => "grants one client no leases, and lets it wait",
            B::ForgetAcknowledged => "forgets what it acknowledged",
            B::DowngradeVersion => "chooses a version of no time",
            B::DowngradeServerKeys => "shows an old list of server keys",
            B::OversizedProof => "sends oversized proofs",
            B::OversizedView => "sends an oversized view",
            B::FalseFileSystem => "serves another file system",
            B::ForeignStructure => "shows a structure from another file system",
            B::NeverCommits => "is honest; another client never commits",
            B::ClonedState => "is honest; the device's state was cloned",
            B::CrashAndRecover => "is honest; loses power and recovers",
            B::FailOver => "is honest; another machine takes over",
            B::SlowDrip => "drips its answers",
            B::Stall => "stalls",
            B::ClockJumps => "has its clock jump",
            B::RestoreDeclared => "is put back, as its superuser declares",
            B::RestoreHidden => "is put back as declared, and hides it from some",
            B::RestoreWithheld => "is put back, and withholds the declaration",
            B::RestoreUndone => "goes back to before a declared restore",
            B::RestoreReplayed => "goes back a second time, under the old declaration",
            B::RestoreOtherState => "serves another state than was declared",
            B::RestoreOfFork => "has a restore of another branch declared",
            B::RestoreOfAnother => "shows a restore that another file system's superuser declared",
            B::WarrantTwice => "is honest; a warrant is submitted twice and sent again",
            B::WarrantLate => "is honest; a warrant comes after what it names was revoked",
            B::WarrantOvertaken => "and a member bring in a warrant all the same",
            B::WarrantAltered => "and a member alter a warrant",
            B::WarrantReordered => "orders a warrant before the change that overtook it",
        }
    }

    /// The verdict that the behaviour must have.
    pub fn kind(self) -> Kind {
        match self {
            B::Honest
            | B::ReplayRequests
            | B::CollectGarbage
            | B::RecallFalsely
            | B::WithholdFalsely
            | B::Starve
            | B::NeverCommits
            | B::CrashAndRecover
            | B::FailOver
            | B::SlowDrip
            | B::ClockJumps
            | B::WarrantTwice
            | B::WarrantLate => Kind::Honest,
            B::FlipData
            | B::FlipMetadata
            | B::SwapData
            | B::SwapMetadata
            | B::CutData
            | B::Bomb
            | B::WithholdData
            | B::WithholdMetadata
            | B::OmitEntries
            | B::DoubleEntries
            | B::ForgedTable => Kind::Data,
            B::RollBackFile
            | B::RollBackAll
            | B::LeakAcrossFork
            | B::DropPending
            | B::HideCommit
            | B::AbortAcknowledged
            | B::ReplayAnswers
            | B::ReorderPending
            | B::BackDateRevoked
            | B::HideRevocation
            | B::SubstituteKey
            | B::AnothersTable
            | B::LaunderedTable
            | B::ForgetAcknowledged
            | B::OversizedProof
            | B::OversizedView
            | B::ForeignStructure
            | B::FalseFileSystem
            | B::ClonedState
            | B::RestoreWithheld
            | B::RestoreReplayed
            | B::RestoreOtherState
            | B::RestoreOfAnother
            | B::WarrantOvertaken
            | B::WarrantAltered
            | B::WarrantReordered => Kind::Order,
            B::RestoreUndone | B::RestoreOfFork => Kind::Memory,
            B::RestoreDeclared | B::RestoreHidden => Kind::Restored,
            B::DowngradeVersion | B::DowngradeServerKeys => Kind::Greeting,
            B::Stall => Kind::Denial,
            B::ForkForEver | B::BreakLease => Kind::Bounded,
        }
    }

    /// Whether the victim asks for leases.
    pub fn is_about_leases(self) -> bool {
        matches!(self, B::BreakLease | B::RecallFalsely | B::WithholdFalsely | B::Starve)
    }

    /// How long the victim waits for an answer; `None` means very long.
    pub fn patience(self, victim: usize) -> Option<Duration> {
        let has_no_answer = match self {
            B::Stall | B::DowngradeVersion => true,
            // A client that has never been there has no newer list to compare with.
            B::DowngradeServerKeys => victim != CAROL,
            _ => false,
        };
        has_no_answer.then_some(Duration::from_millis(400))
    }

    /// Prepares what has to be so before the victim mounts. `bound` is the largest age of a head, where there is a
    /// witness.
    pub fn set_up(self, stage: &mut Stage, victim: usize, bound: Duration) {
        match self {
            B::ForkForEver => {
                stage.witness = Some(Witness::new());
                stage.have_witnessed();
            }
            // The victim is never told of a recall.
            B::BreakLease => stage.lie(
                victim,
                Arc::new(|request, honest| match request {
                    Request::AwaitRecall { .. } => {
                        std::thread::sleep(Duration::from_millis(20));
                        Ok(Response::Recalled(None))
                    }
                    request => Ok(honest(request)),
                }),
            ),
            B::RecallFalsely => {
                let (lies_told, recalls) = (stage.lies_told.clone(), AtomicU64::new(0));
                stage.lie(
                    victim,
                    Arc::new(move |request, honest| match request {
                        Request::AwaitRecall { epoch, .. } => {
                            lies_told.one();
                            let number = recalls.fetch_add(1, SeqCst) + 1;
                            std::thread::sleep(Duration::from_millis(1));
                            Ok(Response::Recalled(Some(Recall {
                                epoch,
                                number,
                                scopes: Vec::new(),
                                exclusive: Vec::new(),
                                everything: true,
                                delegation: true,
                            })))
                        }
                        request => Ok(honest(request)),
                    }),
                );
            }
            B::WithholdFalsely => {
                stage.lie(
                    victim,
                    about_grants(&stage.lies_told, |grant| grant.withheld = Withheld::everything()),
                );
            }
            B::Starve => {
                let deprive = |grant: &mut LeaseGrant| {
                    std::thread::sleep(Duration::from_millis(30));
                    *grant = LeaseGrant::none(grant.withheld.clone());
                };
                stage.lie(victim, about_grants(&stage.lies_told, deprive));
            }
            _ => {}
        }
        stage.habits[victim] = Habits {
            leases: self.is_about_leases(),
            witness: stage.witness.as_ref().map(|witness| (witness.verifier(), bound)),
            ..Habits::default()
        };
    }

    /// Does everything up to the victim's call. From now on the victim may be told what is false.
    pub fn begin(self, stage: &mut Stage, victim: usize, bound: Duration) {
        if self.kind() == Kind::Data && self != B::ForgedTable {
            // So that there is something to fetch.
            stage.does(BOB, Call::Write("target", content(200)));
            stage.does(BOB, Call::Create("later"));
        }
        self.prepare(stage, victim, bound);
        let is_shown_views = matches!(
            self,
            B::RollBackFile
                | B::LeakAcrossFork
                | B::HideCommit
                | B::SubstituteKey
                | B::OversizedProof
                | B::OversizedView
                | B::ForeignStructure
                | B::RestoreOtherState
                | B::RestoreOfAnother
                | B::WarrantOvertaken
                | B::WarrantAltered
        );
        if is_shown_views {
            // So that the victim's next operation cannot be made in one step, on a view that it has.
            stage.does(DAVE, Call::Stat("second"));
        }
    }

    fn prepare(self, stage: &mut Stage, victim: usize, bound: Duration) {
        let lies_told = stage.lies_told.clone();
        match self {
            B::Honest | B::ForgetAcknowledged | B::RecallFalsely | B::WithholdFalsely | B::Starve => {}
            B::FlipData => stage.lie(victim, forge::blocks(&lies_told, forge::is_data, forge::flip)),
            B::FlipMetadata => stage.lie(victim, forge::blocks(&lies_told, forge::is_metadata, forge::flip)),
            B::SwapData => stage.lie(victim, forge::blocks(&lies_told, forge::is_data, forge::swap)),
            B::SwapMetadata => stage.lie(victim, forge::blocks(&lies_told, forge::is_metadata, forge::swap)),
            B::CutData => stage.lie(victim, forge::blocks(&lies_told, forge::is_data, forge::cut)),
            B::Bomb => stage.lie(victim, forge::blocks(&lies_told, forge::is_data, forge::bomb)),
            B::WithholdData => stage.lie(victim, forge::blocks(&lies_told, forge::is_data, forge::withhold)),
            B::WithholdMetadata => {
                stage.lie(victim, forge::blocks(&lies_told, forge::is_metadata, forge::withhold));
            }
            B::OmitEntries => stage.lie(victim, forge::blocks(&lies_told, forge::is_directory, forge::omit)),
            B::DoubleEntries => {
                stage.lie(victim, forge::blocks(&lies_told, forge::is_directory, forge::double))
            }
            B::RollBackFile => {
                let former = stage.scene.former(BOB);
                stage.lie(
                    victim,
                    about_views(&lies_told, move |reply| {
                        reply.view.slots.insert(DeviceId(BOB as u32), former.clone());
                    }),
                );
            }
            B::RollBackAll => {
                let past = Server::start(&stage.scene.yesterday);
                let branch = stage.branch(TreePosition { branch: 0, rounds: 0 }, past);
                stage.lead(victim, branch);
                lies_told.one();
            }
            B::LeakAcrossFork => {
                let other = stage.fork(0);
                stage.lead(BOB, other);
                stage.does(BOB, Call::Write("target", content(200)));
                if victim == ALICE {
                    stage.does(ALICE, Call::Stat("target"));
                } else {
                    stage.does(DAVE, Call::Stat("target"));
                }
                leak(stage, victim, BOB, other);
            }
            B::ForkForEver => {
                let fork = stage.fork(0);
                stage.lead(victim, fork);
                stage.does(BOB, Call::Write("target", content(200)));
                stage.have_witnessed();
                lies_told.one();
            }
            B::DropPending => {
                stage.leave_pending(BOB, DAVE, false);
                look_around(stage, victim);
                stage.lie(
                    victim,
                    about_views(&lies_told, |reply| {
                        reply.view.pending.retain(|entry| entry.dead);
                    }),
                );
            }
            B::HideCommit => {
                stage.leave_pending(BOB, DAVE, false);
                let shown = stage.view(ALICE, 0).view;
                let entry = shown.pending.into_iter().find(|entry| !entry.dead).expect("it is pending");
                let former = shown.slots[&DeviceId(BOB as u32)].clone();
                stage.tell_the_truth(BOB);
                stage.honest(BOB).engine.flush_commits().expect("bob is told the truth");
                look_around(stage, victim);
                stage.lie(
                    victim,
                    about_views(&lies_told, move |reply| {
                        reply.view.slots.insert(DeviceId(BOB as u32), former.clone());
                        reply.view.pending.insert(0, PendingEntry { dead: true, ..entry.clone() });
                    }),
                );
            }
            B::AbortAcknowledged => stage.lie(victim, denials(&lies_told)),
            B::ReplayAnswers => {
                let former = stage.scene.shown_yesterday.clone();
                let receipt: Mutex<Option<Response>> = Mutex::default();
                if let Some(mount) = &stage.mounts[victim] {
                    *receipt.lock() = mount.engine.floor().receipt.clone().map(Response::Committed);
                }
                stage.lie(
                    victim,
                    Arc::new(move |request, honest| {
                        Ok(match honest(request) {
                            Response::View(_) | Response::LeasedView(..) => {
                                lies_told.one();
                                Response::View(Box::new(former.clone()))
                            }
                            Response::Committed(given) | Response::LeasedCommitted(given, _) => {
                                let committed = Response::Committed(given);
                                let before = receipt.lock().replace(committed.clone());
                                before.map_or(committed, |before| {
                                    lies_told.one();
                                    before
                                })
                            }
                            other => other,
                        })
                    }),
                );
            }
            B::ReplayRequests => replay_requests(stage, victim),
            B::ReorderPending => {
                stage.leave_pending(BOB, DAVE, false);
                stage.leave_pending(DAVE, ALICE, false);
                look_around(stage, victim);
                stage.lie(victim, about_views(&lies_told, |reply| forge::reorder(&mut reply.view)));
            }
            B::BackDateRevoked => {
                let before = stage.fork(0);
                stage.remove(BOB);
                look_around(stage, victim);
                stage.lead(BOB, before);
                stage.does(BOB, Call::Write("target", content(200)));
                leak(stage, victim, BOB, before);
            }
            B::HideRevocation => {
                let before = stage.fork(0);
                stage.remove(BOB);
                stage.lead(BOB, before);
                stage.lead(victim, before);
                stage.does(BOB, Call::Write("target", content(200)));
                lies_told.one();
            }
            B::SubstituteKey => {
                let (forged, block) = forge::membership_with_key(stage, BOB, server_key().public());
                let mut of_root = stage.slot(ROOT, 0);
                of_root.value.handles.insert(PrincipalId::Members, forged);
                let of_root = Signed::new(of_root.value, &server_key());
                let of_bob = Signed::new(stage.slot(BOB, 0).value, &server_key());
                stage.lie(
                    victim,
                    about_views(&lies_told, move |reply| {
                        reply.view.slots.insert(DeviceId(ROOT as u32), of_root.clone());
                        reply.view.slots.insert(DeviceId(BOB as u32), of_bob.clone());
                        reply.blocks.push(block.clone());
                    }),
                );
            }
            B::ForgedTable | B::AnothersTable | B::LaunderedTable => {
                let who = if self == B::LaunderedTable { DAVE } else { BOB };
                match who {
                    DAVE => drop(stage.does(DAVE, Call::Stat("second"))),
                    _ => drop(stage.does(BOB, Call::Write("target", content(200)))),
                }
                let (slot, block) = match self {
                    B::ForgedTable => forge::garbage_table(stage, BOB),
                    B::AnothersTable => forge::table_of(stage, BOB, forge::user_of(ALICE)),
                    _ => forge::table_of(stage, DAVE, forge::team()),
                };
                let device = DeviceId(who as u32);
                forge::serve(stage, victim, block, move |reply| {
                    reply.view.slots.insert(device, slot.clone());
                });
            }
            B::CollectGarbage => {
                let server = stage.server();
                server.clock.pass(Duration::from_secs(3 * 365 * 86_400));
                for (_, collected) in server.host().collect(Duration::from_secs(60)) {
                    collected.expect("an honest server collects");
                    lies_told.one();
                }
            }
            B::BreakLease => {
                stage.server().clock.pass(bound + Duration::from_millis(100));
                lies_told.one();
            }
            B::DowngradeVersion => {
                let link = &stage.machines[victim].link;
                link.greet_falsely(Some(Arc::new(move |welcome| {
                    lies_told.one();
                    welcome.version = 0;
                })));
            }
            B::DowngradeServerKeys => {
                let old = stage.scene.first_keys.clone();
                let link = &stage.machines[victim].link;
                link.greet_falsely(Some(Arc::new(move |welcome| {
                    if let Some((_, keys)) = &mut welcome.file_system {
                        lies_told.one();
                        *keys = old.clone();
                    }
                })));
            }
            B::OversizedProof => stage.lie(
                victim,
                about_views(&lies_told, |reply| {
                    reply.consistency.extend(vec![Digest::ZERO; 100_000]);
                    reply.peaks.extend(vec![Digest::ZERO; 100_000]);
                }),
            ),
            B::OversizedView => stage.lie(
                victim,
                about_views(&lies_told, |reply| {
                    let any = reply.view.slots.values().next().expect("a slot").clone();
                    let many = (1000..6000).map(|id| (DeviceId(id), any.clone()));
                    reply.view.slots.extend(many);
                }),
            ),
            B::FalseFileSystem => {
                let foreign = Scene::foreign();
                let impostor = Server::impostor(&foreign.today, foreign.id());
                stage.machines[victim].link.lead_to(&impostor);
                lies_told.one();
            }
            B::ForeignStructure => {
                let foreign = Scene::foreign().former(BOB);
                stage.lie(
                    victim,
                    about_views(&lies_told, move |reply| {
                        reply.view.slots.insert(DeviceId(BOB as u32), foreign.clone());
                    }),
                );
            }
            B::NeverCommits => {
                stage.leave_pending(BOB, DAVE, true);
                stage.machines[BOB].link.set_down(true);
                lies_told.one();
            }
            B::ClonedState => {
                let clone = clone_of(stage, victim);
                let mount = clone.mount(&Habits::default()).expect("the clone is the first to go on");
                let call = Call::Stat("second");
                mount.call(&call).expect("the clone is told the truth");
                drop(mount);
                lies_told.one();
            }
            B::CrashAndRecover => crash_at_the_worst_moment(stage, victim),
            B::FailOver => {
                let successor = stage.server().fork();
                let server = stage.server();
                server.put_back(&successor.image());
                lies_told.one();
            }
            B::SlowDrip => stage.lie(
                victim,
                Arc::new(move |request, honest| {
                    lies_told.one();
                    std::thread::sleep(Duration::from_millis(5));
                    let answer = honest(request);
                    std::thread::sleep(Duration::from_millis(5));
                    Ok(answer)
                }),
            ),
            B::Stall => stage.lie(
                victim,
                Arc::new(move |_, _| {
                    lies_told.one();
                    std::thread::sleep(Duration::from_millis(50));
                    Err(RpcError::Deadline { maybe_sent: false })
                }),
            ),
            B::RestoreDeclared => restored::declared(stage, victim),
            B::RestoreHidden => restored::hidden(stage, victim),
            B::RestoreWithheld => restored::withheld(stage, victim),
            B::RestoreUndone => restored::undone(stage, victim),
            B::RestoreReplayed => restored::replayed(stage, victim),
            B::RestoreOtherState => restored::other_state(stage, victim),
            B::RestoreOfFork => restored::of_a_fork(stage, victim),
            B::RestoreOfAnother => restored::of_another(stage, victim),
            B::WarrantTwice => warrants::twice(stage, victim),
            B::WarrantLate => warrants::late(stage, victim),
            B::WarrantOvertaken => warrants::overtaken(stage, victim),
            B::WarrantAltered => warrants::altered(stage, victim),
            B::WarrantReordered => warrants::reordered(stage, victim),
            B::ClockJumps => {
                let server = stage.server();
                let turn = Mutex::new(1i64);
                stage.lie(
                    victim,
                    Arc::new(move |request, honest| {
                        let mut turn = turn.lock();
                        // The clock jumps thirty years ahead, sixty back, and so on.
                        server.clock.jump(*turn * 30 * 365 * 86_400);
                        *turn = if *turn > 0 { -2 } else { 2 };
                        lies_told.one();
                        drop(turn);
                        Ok(honest(request))
                    }),
                );
            }
        }
    }

    /// Does what the adversary does once the victim's call has returned.
    pub fn go_on(self, stage: &mut Stage, victim: usize, before: (TreePosition, Image)) {
        if self == B::ForgetAcknowledged {
            let (position, image) = before;
            let past = Server::start(&image);
            let branch = stage.branch(position, past);
            stage.lead(victim, branch);
            stage.lies_told.one();
        }
    }
}

/// Shows the victim the true state, if the victim has a mount.
fn look_around(stage: &mut Stage, victim: usize) {
    if stage.mounts[victim].is_some() {
        stage.does(victim, Call::Stat("second"));
    }
}

/// Shows the victim what somebody did on another branch.
fn leak(stage: &mut Stage, victim: usize, who: usize, branch: usize) {
    let slot = stage.slot(who, branch);
    let lies_told = stage.lies_told.clone();
    stage.lie(
        victim,
        about_views(&lies_told, move |reply| {
            reply.view.slots.insert(DeviceId(who as u32), slot.clone());
        }),
    );
}

/// Starts another machine with the same key and a copy of the state.
fn clone_of(stage: &Stage, victim: usize) -> Machine {
    let machine = &stage.machines[victim];
    let image = Image::of(&machine.disk).expect("its power is on");
    let server = machine.link.server();
    let link = Link::new(&server, stage.scene.id(), machine.key.public(), 0);
    Machine::new(NAMES[victim], machine.key.clone(), &image, link)
}

/// Has everything that bob asks, and then what the victim asks, reach the server again and again.
fn replay_requests(stage: &mut Stage, victim: usize) {
    let lies_told = stage.lies_told.clone();
    let heard: Arc<Mutex<Vec<Request>>> = Arc::default();
    let record = heard.clone();
    let signed = |request: &Request| {
        matches!(request, Request::Update { .. } | Request::Commit { .. } | Request::Fast { .. })
    };
    stage.lie(
        BOB,
        Arc::new(move |request, honest| {
            if signed(&request) {
                record.lock().push(request.clone());
            }
            Ok(honest(request))
        }),
    );
    stage.does(BOB, Call::Write("target", content(200)));
    let old = heard.lock().clone();
    let bobs = stage.machines[BOB].link.clone();
    let own: Mutex<Vec<Request>> = Mutex::default();
    stage.lie(
        victim,
        Arc::new(move |request, honest| {
            for again in &old {
                lies_told.one();
                let _ = bobs.call(again.clone(), PATIENCE);
            }
            for again in own.lock().iter() {
                lies_told.one();
                honest(again.clone());
            }
            let answer = honest(request.clone());
            if signed(&request) {
                own.lock().push(request);
            }
            Ok(answer)
        }),
    );
}

/// Has the server lose its power after it has accepted the victim's next operation, and before its answer gets out.
fn crash_at_the_worst_moment(stage: &mut Stage, victim: usize) {
    let lies_told = stage.lies_told.clone();
    let server = stage.server();
    server.crash(Crash::PowerLoss);
    let is_over = Mutex::new(false);
    stage.lie(
        victim,
        Arc::new(move |request, honest| {
            let operates =
                matches!(request, Request::Update { .. } | Request::Commit { .. } | Request::Fast { .. });
            let answer = honest(request);
            let mut is_over = is_over.lock();
            if operates && !*is_over {
                *is_over = true;
                lies_told.one();
                server.crash(Crash::PowerLoss);
                return Err(RpcError::Lost { maybe_sent: true });
            }
            Ok(answer)
        }),
    );
}
