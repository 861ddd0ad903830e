//! Servers that are put back to an older state: with the superuser's declaration, without it, or with one that is not
//! for what is shown.
//!
//! An honest one costs what was lost, and says so to everybody; whoever remembers more is stopped, told, and goes on when
//! it is started again. Anything else is a roll-back.

use super::forge;
use super::oracle::{Call, TreePosition};
use super::scene::{ALICE, BOB, DAVE, ROOT, Scene, content, key_of, look_from};
use super::stage::{Stage, about_views};
use super::verdict::{Row, Verdict, When};
use super::world::{Habits, Image, Link, Machine, NOW_NS, Refusal, Server};
use holdfast_client::FsError;
use holdfast_client::evidence;
use holdfast_client::remote::Remote;
use holdfast_content::{BlockKind, DeviceId, Membership, PrincipalId, Restore};
use holdfast_crypto::DigestKey;
use holdfast_protocol::epoch::{Declaration, latest};
use holdfast_protocol::message::{AddressedBlock, Request, Response};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::restore::{remaining_log, take_up};
use holdfast_protocol::sequencer::settled;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Signer, Tables};
use holdfast_protocol::structure::{HandleVersion, View};
use holdfast_testing::PATIENCE;

/// The position at which yesterday ended.
const YESTERDAY: TreePosition = TreePosition { branch: 0, rounds: 0 };

/// Puts yesterday's disk back, and has the superuser declare it. Returns the branch that begins.
pub(super) fn yesterday(stage: &mut Stage) -> usize {
    declare(stage, &stage.scene.yesterday.clone(), YESTERDAY)
}

/// Puts `image`, which is of `position`, back, and has the superuser declare it. Returns the branch that begins.
///
/// # Panics
/// If an honest restore is refused.
pub(super) fn declare(stage: &mut Stage, image: &Image, position: TreePosition) -> usize {
    stage.lead(ROOT, position.branch);
    let engine = stage.machines[ROOT].start(&Habits::default()).expect("the superuser is told the truth");
    let before = engine.floor();
    engine.stop();
    drop(engine);

    let server = Server::put_back_from(image);
    let (id, key) = (stage.scene.id(), stage.scene.key(ROOT));
    let link = Link::new(&server, id, key.public(), 2);
    let members = members_of(&link, &look_from(&link, 0).expect("it shows its state").view);
    let head = look_from(&link, 0).expect("it shows its state").view.log;
    let declaration = Declaration {
        file_system: id,
        epoch: latest(id, &members.restores),
        size: head.size,
        root: head.root,
        base: latest(id, &members.restores),
        declared_ns: NOW_NS,
        nonce: [7; 16],
    };
    let mut restores = members.restores.clone();
    let signed = Signed::new(declaration, &key);
    restores.push(signed.value.with(signed.signature));

    // The superuser's device is the first to accept it.
    let left = remaining_log(&before, &restores).expect("it was just declared").expect("it is new");
    let mut reply = look_from(&link, left.head().size).expect("it shows its state");
    reply.view = settled(&reply.view);
    let (floor, _) = take_up(&before, &restores, &members, &reply).expect("an older state of its own");
    let version = last_vector(&reply.view).get(PrincipalId::Members) + 1;
    let next = Membership { version, restores, warrant: None, ..members };
    let block = next.to_block(&DigestKey::WELL_KNOWN).expect("within the limits");
    let reference = block.reference();
    let tables = Tables::from([(PrincipalId::Members, reference)]);
    let effects = Signer::in_epoch(floor).declare(&key, reference, NOW_NS, &tables).expect("idle");
    let sent = effects.into_iter().find_map(|effect| match effect {
        Effect::Send(request) => Some(*request),
        _ => None,
    });
    let Some(Request::Fast { certificate, structure, .. }) = sent else { panic!("it is one operation") };
    let blocks = vec![AddressedBlock { address: reference.address, block: block.to_stored() }];
    let answer = link.call(Request::DeclareRestore { certificate, structure, blocks }, PATIENCE);
    assert!(matches!(answer, Ok(Response::Committed(_))), "{answer:?}");

    let branch = stage.branch(position, server);
    stage.tree.declare(branch);
    stage.truth = branch;
    branch
}

/// The membership that a view names, from the server that shows it.
fn members_of(link: &Link, view: &View) -> Membership {
    let (_, handle) = view.handle(PrincipalId::Members).expect("there is one");
    let answer = link.call(Request::Retrieve(vec![handle.reference.address]), PATIENCE);
    let Ok(Response::Blocks(found)) = answer else { panic!("{answer:?}") };
    let (_, found) = found.into_iter().flatten().next().expect("it is kept");
    let block = found.block.open(&DigestKey::WELL_KNOWN, &handle.reference, BlockKind::Membership);
    Membership::from_block(&block.expect("it is what it says")).expect("it is one")
}

/// Every client but the victim accepts the restore, and works there.
fn go_over(stage: &mut Stage, branch: usize) {
    for who in [BOB, DAVE] {
        stage.unmount(who);
        stage.lead(who, branch);
    }
    stage.does(BOB, Call::Write("target", content(500)));
    stage.does(DAVE, Call::Stat("second"));
}

/// Honest: the declaration is shown to every client.
pub(super) fn declared(stage: &mut Stage, victim: usize) {
    let branch = yesterday(stage);
    go_over(stage, branch);
    stage.lead(victim, branch);
    stage.lies_told.one();
}

/// The victim is kept in the state that was lost.
pub(super) fn hidden(stage: &mut Stage, _victim: usize) {
    let branch = yesterday(stage);
    go_over(stage, branch);
    stage.lies_told.one();
}

/// The victim is shown yesterday, and not the declaration.
pub(super) fn withheld(stage: &mut Stage, victim: usize) {
    let branch = yesterday(stage);
    go_over(stage, branch);
    let undeclared = Server::start(&stage.scene.yesterday);
    let undeclared = stage.branch(YESTERDAY, undeclared);
    stage.lead(victim, undeclared);
    stage.lies_told.one();
}

/// The victim accepts the restore, if it has any memory.
fn victim_goes_over(stage: &mut Stage, victim: usize, branch: usize) {
    if stage.mounts[victim].is_some() {
        stage.unmount(victim);
        stage.lead(victim, branch);
        stage.does(victim, Call::List);
        stage.does(victim, Call::Read("second"));
        stage.does(victim, Call::Stat("target"));
    }
}

/// The victim has accepted the restore, and is shown the state that was lost.
pub(super) fn undone(stage: &mut Stage, victim: usize) {
    let branch = yesterday(stage);
    go_over(stage, branch);
    victim_goes_over(stage, victim, branch);
    stage.lead(victim, 0);
    stage.lies_told.one();
}

/// The victim has accepted the restore; then the server goes back again, under the first declaration.
pub(super) fn replayed(stage: &mut Stage, victim: usize) {
    let branch = yesterday(stage);
    let (position, image) = (stage.tree.end_of(branch), stage.servers[branch].image());
    go_over(stage, branch);
    victim_goes_over(stage, victim, branch);
    let again = stage.branch(position, Server::start(&image));
    stage.lead(victim, again);
    stage.lies_told.one();
}

/// Under the declaration, something of what was lost is shown as if it were left.
pub(super) fn other_state(stage: &mut Stage, victim: usize) {
    let lost = stage.slot(BOB, 0);
    let branch = yesterday(stage);
    stage.lead(DAVE, branch);
    stage.unmount(DAVE);
    stage.does(DAVE, Call::Stat("second"));
    stage.lead(victim, branch);
    let views = about_views(&stage.lies_told.clone(), move |reply| {
        reply.view.slots.insert(DeviceId(BOB as u32), lost.clone());
    });
    stage.lie(victim, views);
}

/// The superuser was shown another branch than the victim, and declares a restore there.
pub(super) fn of_a_fork(stage: &mut Stage, victim: usize) {
    let other = stage.fork(0);
    for who in [BOB, DAVE] {
        stage.lead(who, other);
    }
    stage.does(BOB, Call::Write("target", content(500)));
    if stage.mounts[victim].is_some() {
        stage.does(victim, Call::Stat("second"));
    }
    let (position, image) = (stage.tree.end_of(other), stage.servers[other].image());
    let branch = declare(stage, &image, position);
    for who in [BOB, DAVE] {
        stage.unmount(who);
        stage.lead(who, branch);
    }
    stage.lead(victim, branch);
    stage.lies_told.one();
}

/// A member who helps the server shows a restore that another superuser has declared of another file system.
pub(super) fn of_another(stage: &mut Stage, victim: usize) {
    let foreign = Scene::foreign();
    let shown = stage.view(ALICE, 0).view;
    let declaration = Declaration {
        file_system: foreign.id(),
        epoch: foreign.id(),
        size: shown.log.size,
        root: shown.log.root,
        base: foreign.id(),
        declared_ns: NOW_NS,
        nonce: [8; 16],
    };
    let signed = Signed::new(declaration, &foreign.key(ROOT));
    let restore: Restore = signed.value.with(signed.signature);
    stage.does(BOB, Call::Write("target", content(200)));
    let mut members = forge::members(stage);
    members.restores.push(restore);
    members.version += 1;
    show_membership(stage, victim, BOB, &members);
}

/// Shows the victim a membership in the last structure of a member who helps the server.
pub(super) fn show_membership(stage: &Stage, victim: usize, who: usize, members: &Membership) {
    let block = members.to_block(&DigestKey::WELL_KNOWN).expect("within the limits");
    let mut structure = stage.slot(who, 0).value;
    structure.forecast.vector.set(PrincipalId::Members, members.version);
    let handle = HandleVersion { version: members.version, reference: block.reference() };
    structure.handles.insert(PrincipalId::Members, handle);
    let slot = Signed::new(structure, &key_of(who));
    let (device, address) = (DeviceId(who as u32), block.reference().address);
    let block = AddressedBlock { address, block: block.to_stored() };
    forge::serve(stage, victim, Some(block), move |reply| {
        reply.view.slots.insert(device, slot.clone());
    });
}

/// A client that has forgotten everything by the time it is lied to: a machine that was never there, in the victim's
/// place. The oracle finds what the rows would find.
pub fn forget(stage: &mut Stage, victim: usize, stand_in: usize) {
    stage.unmount(victim);
    let key = stage.scene.key(stand_in);
    let server = stage.servers[stage.lives[victim]].clone();
    let link = Link::new(&server, stage.scene.id(), key.public(), 0);
    stage.machines[victim] = Machine::new("stand-in", key, &Image::default(), link);
}

impl Row<'_> {
    /// The client says what is lost, keeps what it had seen of it, and goes on with the others.
    pub(super) fn went_over(&mut self, when: When) -> Result<Verdict, String> {
        let victim = self.victim;
        let mount = self.stage.mounts[victim].as_ref().ok_or("it is not mounted")?;
        let report = mount.engine.restored().ok_or("it does not say that it went over")?;
        let is_kept = report.kept.as_ref().is_some_and(|kept| evidence::read(kept).is_ok());
        if report.lost == 0 || !is_kept || !report.to_string().contains("are lost") {
            return Err(format!("it does not say what is lost: {report:?}"));
        }
        self.stage.tell_the_truth(victim);
        for (who, call) in [
            (victim, Call::Write("mine", content(600))),
            (DAVE, Call::Read("mine")),
            (victim, Call::Read("target")),
        ] {
            // A user who is not in the team reads, too.
            self.stage.call(who, call).map_err(|refusal| format!("it does not go on: {refusal:?}"))?;
        }
        Ok(Verdict::Restored(when))
    }

    /// A client that raised an alarm at the older state stays frozen until the restore is shown as declared; then it
    /// accepts it.
    pub(super) fn check_that_it_goes_over(&mut self) -> Result<(), String> {
        let victim = self.victim;
        self.stage.tell_the_truth(victim);
        self.stage.lead(victim, self.stage.truth);
        match self.stage.call(victim, Call::Stat("second")) {
            Err(Refusal::Call(FsError::Frozen(_))) => self.stage.unmount(victim),
            // The client was refused before it had a mount.
            Ok(_) if self.stage.restored.contains(&victim) => {}
            other => return Err(format!("the alarm is forgotten: {other:?}")),
        }
        match self.stage.call(victim, Call::List) {
            // A client that had never been there has lost nothing.
            Ok(_) if self.stage.scene.machines[victim].is_empty() => Ok(()),
            Ok(_) => self.went_over(When::Meeting).map(drop),
            Err(refusal) => Err(format!("the declaration is refused: {refusal:?}")),
        }
    }
}
