//! A run: a copy of the scene, the branch of each client, and what each was told.

use super::oracle::{Call, Event, Observation, Outcome, Tree, TreePosition};
use super::scene::{ALICE, CAROL, NAMES, ROOT, Scene, look};
use super::witness::Witness;
use super::world::{Habits, Image, Liar, Link, Machine, Mount, NOW_NS, Refusal, Server};
use crate::order::ledger::Ledger;
use holdfast_client::admin::Admin;
use holdfast_client::{Changes, FsError};
use holdfast_content::{DeviceId, Entry, Handle, Inode, InodeKind};
use holdfast_protocol::leases::LeaseGrant;
use holdfast_protocol::message::{Request, Response, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{PendingEntry, Structure};
use holdfast_rpc::RpcError;
use holdfast_testing::{PATIENCE, eventually};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A counter of lies.
#[derive(Clone, Default)]
pub struct LieCounter(Arc<AtomicU64>);

impl LieCounter {
    /// Counts a lie.
    pub fn one(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// The number of lies so far.
    pub fn count(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// A run.
pub struct Stage {
    /// The state with which it began.
    pub scene: &'static Scene,
    /// Copies of the server, by the oracle's branch.
    pub servers: Vec<Arc<Server>>,
    /// Machines by device.
    pub machines: Vec<Machine>,
    /// The mounts, by device.
    pub mounts: Vec<Option<Mount>>,
    /// The options with which they mount.
    pub habits: Vec<Habits>,
    /// The branch that each client talks to.
    pub lives: Vec<usize>,
    /// What every client was told.
    pub tree: Tree,
    /// What every device has accepted of the order.
    ledger: Ledger,
    /// Contradictions that were found, in words.
    pub contradictions: Vec<String>,
    /// The number of lies told.
    pub lies_told: LieCounter,
    /// The witness, if there is one.
    pub witness: Option<Witness>,
    /// The branch to which every client is led when the adversary gives up.
    pub truth: usize,
    /// The clients that have accepted a declared restore.
    pub restored: BTreeSet<usize>,
}

impl Stage {
    /// A copy of today's state, with leases of this term, or none if it is zero; nothing is mounted.
    pub fn set(lease_term: Duration) -> Stage {
        let scene = Scene::get();
        let server = Server::start_with_leases(&scene.today, lease_term);
        let machine = |(who, image): (usize, &Image)| {
            let key = scene.key(who);
            // A machine that has been there remembers the newest list of server keys.
            let sequence = if who == CAROL { 0 } else { 2 };
            let link = Link::new(&server, scene.id(), key.public(), sequence);
            Machine::new(NAMES[who], key, image, link)
        };
        let machines: Vec<Machine> = scene.machines.iter().enumerate().map(machine).collect();
        Stage {
            scene,
            servers: vec![server],
            mounts: machines.iter().map(|_| None).collect(),
            habits: vec![Habits::default(); machines.len()],
            lives: vec![0; machines.len()],
            machines,
            tree: scene.tree.clone(),
            ledger: Ledger::default(),
            contradictions: Vec::new(),
            lies_told: LieCounter::default(),
            witness: None,
            truth: 0,
            restored: BTreeSet::new(),
        }
    }

    /// The honest server, or its successor.
    pub fn server(&self) -> Arc<Server> {
        self.servers[0].clone()
    }

    /// Mounts, unless there is a mount.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn mount(&mut self, who: usize) -> Result<(), Refusal> {
        if self.mounts[who].is_none() {
            self.mounts[who] = Some(self.machines[who].mount(&self.habits[who])?);
        }
        Ok(())
    }

    /// Mounts anew, with this time-out.
    pub fn mount_impatiently(&mut self, who: usize, patience: Duration) {
        self.unmount(who);
        self.habits[who].patience = Some(patience);
        eventually("a server that does not lie answers in time", || self.mount(who).is_ok());
        self.settle(who);
    }

    /// Unmounts.
    pub fn unmount(&mut self, who: usize) {
        self.mounts[who] = None;
    }

    /// Mounts for a client to whom nobody lies.
    ///
    /// # Panics
    /// If it is refused.
    pub fn honest(&mut self, who: usize) -> &Mount {
        self.mount(who).unwrap_or_else(|refusal| panic!("{} is told the truth: {refusal:?}", NAMES[who]));
        self.mounts[who].as_ref().expect("it was just mounted")
    }

    /// A call of one client, with no overlapping one; the oracle is told the outcome.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn call(&mut self, who: usize, call: Call) -> Result<Observation, Refusal> {
        let result = self.mount(who).and_then(|()| {
            let mount = self.mounts[who].as_ref().expect("it was just mounted");
            mount.call(&call)
        });
        self.notice_restore(who);
        let outcome = result.as_ref().map_or(Outcome::Failed, |seen| Outcome::Returned(seen.clone()));
        self.note(self.lives[who], vec![Event { who, call, outcome }]);
        self.observe(who);
        result
    }

    /// Tells the oracle if a client says that it has accepted a restore.
    fn notice_restore(&mut self, who: usize) {
        let said = self.mounts[who].as_ref().and_then(|mount| mount.engine.restored());
        if let Some(report) = said
            && self.restored.insert(who)
        {
            self.ledger.take_up(DeviceId(who as u32));
            if let Err(contradiction) = self.tree.take_up(who, self.lives[who], report.lost) {
                self.contradictions.push(contradiction);
            }
        }
    }

    /// Tells the ledger what a device has signed and accepted since.
    pub fn observe(&mut self, who: usize) {
        let device = DeviceId(who as u32);
        for structure in self.machines[who].link.take_signed() {
            self.ledger.sign(device, &structure);
        }
        if let Some(mount) = &self.mounts[who]
            && let Err(contradiction) = self.ledger.accept(device, &mount.engine.floor().view)
        {
            self.contradictions.push(contradiction.to_string());
        }
    }

    /// A call of a client to whom nobody lies.
    ///
    /// # Panics
    /// If it is refused.
    pub fn does(&mut self, who: usize, call: Call) -> Observation {
        let seen = self
            .call(who, call)
            .unwrap_or_else(|refusal| panic!("{} is told the truth: {refusal:?}", NAMES[who]));
        self.settle(who);
        seen
    }

    /// Waits for the COMMITs of operations, as a call returns before them.
    fn settle(&self, who: usize) {
        let device = DeviceId(who as u32);
        let end = Instant::now() + PATIENCE;
        let is_under_way = |entry: &PendingEntry| !entry.dead && entry.forecast.device == device;
        while self.view(who, self.lives[who]).view.pending.iter().any(is_under_way) {
            assert!(Instant::now() < end, "{}'s operation stays pending", NAMES[who]);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tells the oracle of overlapping calls.
    pub fn note(&mut self, branch: usize, events: Vec<Event>) {
        if let Err(contradiction) = self.tree.round(branch, events) {
            self.contradictions.push(contradiction);
        }
    }

    /// Copies a server, as a new branch.
    pub fn fork(&mut self, branch: usize) -> usize {
        let server = self.servers[branch].fork();
        self.branch(self.tree.end_of(branch), server)
    }

    /// Starts a server from a position, as a new branch.
    pub fn branch(&mut self, from: TreePosition, server: Arc<Server>) -> usize {
        self.servers.push(server);
        self.tree.fork(from)
    }

    /// Has a client talk to another copy from now on.
    pub fn lead(&mut self, who: usize, branch: usize) {
        self.machines[who].link.lead_to(&self.servers[branch]);
        self.lives[who] = branch;
    }

    /// Has lies told to a client.
    pub fn lie(&self, who: usize, liar: Liar) {
        self.machines[who].link.lie(Some(liar));
    }

    /// Has the truth told to a client.
    pub fn tell_the_truth(&self, who: usize) {
        self.machines[who].link.lie(None);
        self.machines[who].link.greet_falsely(None);
        self.machines[who].link.set_down(false);
    }

    /// The true view of a branch, as a client there would be shown it.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn view(&self, who: usize, branch: usize) -> ViewReply {
        let link = Link::new(&self.servers[branch], self.scene.id(), self.machines[who].key.public(), 0);
        look(&link).expect("a member may look")
    }

    /// A device's last structure on a branch.
    pub fn slot(&self, who: usize, branch: usize) -> Signed<Structure> {
        self.view(ALICE, branch).view.slots[&DeviceId(who as u32)].clone()
    }

    /// Has a client make a file whose operation stays pending: ordered, and not committed.
    pub fn leave_pending(&mut self, who: usize, beside: usize, in_team: bool) {
        self.honest(who);
        // Another client gets ahead of it, so that it cannot be made in one step.
        self.does(beside, Call::Stat("second"));
        // The COMMIT of a look that is still under way gets through.
        let declared = AtomicBool::new(false);
        self.lie(
            who,
            Arc::new(move |request, honest| match request {
                Request::Commit { .. } if declared.load(SeqCst) => Err(RpcError::Lost { maybe_sent: true }),
                request => {
                    if let Request::Update { certificate, .. } = &request {
                        declared.fetch_or(!certificate.value.deltas.is_empty(), SeqCst);
                    }
                    Ok(honest(request))
                }
            }),
        );
        let folder = if in_team { "team" } else { NAMES[who] };
        let edit = move |changes: &mut dyn Changes| {
            let home = changes.entry(Handle::ROOT, folder.as_bytes())?.ok_or(FsError::NotFound)?.handle;
            let handle = changes.allocate(home.principal)?;
            let file = Inode::new(InodeKind::File, 0o644, changes.me(), NOW_NS);
            changes.set_inode(handle, file)?;
            let entry = Entry { handle, kind: InodeKind::File };
            changes.set_entry(home, b"pending", Some(entry), NOW_NS)
        };
        let mount = self.mounts[who].as_ref().expect("it is mounted");
        let made = mount.engine.modify(Arc::new(Mutex::new(edit)));
        made.expect("an answer to the first half is enough");
        if in_team {
            let event = Event { who, call: Call::Create("pending"), outcome: Outcome::Failed };
            self.note(self.lives[who], vec![event]);
        }
    }

    /// Has the witness, if there is one, sign the head of the honest server.
    pub fn have_witnessed(&self) {
        if let Some(witness) = &self.witness {
            witness.sign_for(&self.server(), &self.scene.id());
        }
    }

    /// Removes a member's device, as the superuser.
    pub fn remove(&mut self, who: usize) {
        let engine = self.machines[ROOT].start(&Habits::default()).expect("the superuser is told the truth");
        let admin = Admin::new(&engine).expect("it is the superuser");
        admin.remove_device(NAMES[who], "laptop").expect("it is there");
        engine.stop();
    }

    /// Everything that the oracle has against what was seen.
    pub fn verdict_of_the_oracle(&self) -> Result<(), String> {
        match self.contradictions.first() {
            Some(contradiction) => Err(contradiction.clone()),
            None => self.tree.check(),
        }
    }
}

/// Lies about views; `change` gets each view before the client does.
pub fn about_views(lies_told: &LieCounter, change: impl Fn(&mut ViewReply) + Send + Sync + 'static) -> Liar {
    let lies_told = lies_told.clone();
    Arc::new(move |request, honest| {
        let falsify = |mut reply: Box<ViewReply>| {
            let true_one = reply.clone();
            change(&mut reply);
            if reply != true_one {
                lies_told.one();
            }
            reply
        };
        Ok(match honest(request) {
            Response::View(reply) => Response::View(falsify(reply)),
            Response::LeasedView(reply, grant) => Response::LeasedView(falsify(reply), grant),
            other => other,
        })
    })
}

/// Lies about the leases that come with an operation.
pub fn about_grants(
    lies_told: &LieCounter,
    change: impl Fn(&mut LeaseGrant) + Send + Sync + 'static,
) -> Liar {
    let lies_told = lies_told.clone();
    Arc::new(move |request, honest| {
        let falsify = |mut grant: LeaseGrant| {
            change(&mut grant);
            lies_told.one();
            grant
        };
        Ok(match honest(request) {
            Response::LeasedView(reply, grant) => Response::LeasedView(reply, falsify(grant)),
            Response::LeasedCommitted(receipt, grant) => Response::LeasedCommitted(receipt, falsify(grant)),
            other => other,
        })
    })
}

/// Says of an operation that was accepted that it was not.
pub fn denials(lies_told: &LieCounter) -> Liar {
    let lies_told = lies_told.clone();
    Arc::new(move |request, honest| {
        let denial = match &request {
            Request::Fast { .. } => Response::Refused,
            _ => Response::Aborted,
        };
        Ok(match honest(request) {
            Response::Committed(_) | Response::LeasedCommitted(..) => {
                lies_told.one();
                denial
            }
            other => other,
        })
    })
}
