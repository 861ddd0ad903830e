//! Warrants that the adversary has: changes of the membership that the superuser signed off line, submitted again, too
//! late, out of order, or altered.

use super::oracle::Call;
use super::restored::show_membership;
use super::scene::{ALICE, BOB, DAVE, NAMES, ROOT};
use super::stage::Stage;
use super::world::{NOW_NS, server_key};
use holdfast_client::FsError;
use holdfast_client::admin::changes::{add_group, rotate_device};
use holdfast_client::admin::off_line::{SigningRequest, prepare, submit};
use holdfast_client::remote::Remote;
use holdfast_content::{DeviceId, Membership, PrincipalId};
use holdfast_crypto::SigningKey;
use holdfast_protocol::message::Request;
use holdfast_testing::PATIENCE;
use parking_lot::Mutex;
use std::sync::Arc;

/// The group that warrants are about.
const GROUP: &str = "choir";

/// A change that the superuser has signed, for any member to submit.
fn signed(
    stage: &mut Stage,
    who: usize,
    edit: impl Fn(&mut Membership) -> Result<(), FsError> + Send + 'static,
) -> SigningRequest {
    let engine = stage.honest(who).engine.clone();
    let edit = move |members: &mut Membership| edit(members).map(|()| None);
    let mut request = prepare(&engine, "hf://sim/".to_owned(), edit).expect("a change that can be made");
    request.sign(&stage.scene.key(ROOT)).expect("the superuser signs it");
    request
}

fn founds_group(stage: &mut Stage, who: usize) -> SigningRequest {
    signed(stage, who, |members| add_group(members, GROUP, &[NAMES[BOB].to_owned()]).map(drop))
}

/// Honest: two members submit it, and everything that was sent for it is sent again.
pub(super) fn twice(stage: &mut Stage, _victim: usize) {
    let request = founds_group(stage, BOB);
    let heard: Arc<Mutex<Vec<Request>>> = Arc::default();
    let record = heard.clone();
    stage.lie(
        BOB,
        Arc::new(move |request, honest| {
            if matches!(request, Request::Update { .. } | Request::Commit { .. } | Request::Fast { .. }) {
                record.lock().push(request.clone());
            }
            Ok(honest(request))
        }),
    );
    let engine = stage.honest(BOB).engine.clone();
    submit(&engine, &request, NOW_NS).expect("it is due");
    stage.tell_the_truth(BOB);
    stage.does(BOB, Call::Stat("second"));
    let version = engine.membership().version;
    for again in heard.lock().iter() {
        stage.lies_told.one();
        let _ = stage.machines[BOB].link.call(again.clone(), PATIENCE);
    }
    let daves = stage.honest(DAVE).engine.clone();
    let again = submit(&daves, &request, NOW_NS);
    assert!(matches!(again, Err(FsError::Expired(_))), "{again:?}");
    stage.does(DAVE, Call::Stat("second"));
    let members = daves.membership();
    let groups = members.groups.values().filter(|group| group.name == GROUP).count();
    assert_eq!((groups, members.version), (1, version), "it takes effect once");
}

/// A new key for bob's device, signed; then the superuser removes that device on line.
fn revoked(stage: &mut Stage) -> SigningRequest {
    let key = SigningKey::from_seed(&[77; 32]).public();
    let request =
        signed(stage, DAVE, move |members| rotate_device(members, NAMES[BOB], "laptop", key).map(drop));
    stage.remove(BOB);
    request
}

/// Honest: it is submitted when the device it names was removed.
pub(super) fn late(stage: &mut Stage, _victim: usize) {
    let request = revoked(stage);
    let engine = stage.honest(DAVE).engine.clone();
    let refused = submit(&engine, &request, NOW_NS);
    assert!(matches!(refused, Err(FsError::Expired(_))), "{refused:?}");
    stage.does(DAVE, Call::Stat("second"));
    assert!(!engine.membership().is_active(DeviceId(BOB as u32)), "revoked for good");
    stage.lies_told.one();
}

/// A member who helps the server brings it into force all the same.
pub(super) fn overtaken(stage: &mut Stage, victim: usize) {
    let request = revoked(stage);
    if stage.mounts[victim].is_some() {
        stage.does(victim, Call::Stat("second"));
    }
    stage.does(DAVE, Call::Stat("second"));
    let version = stage.view(ALICE, 0).view.handle(PrincipalId::Members);
    let version = version.map_or(0, |(_, handle)| handle.version) + 1;
    let signature = request.signature.expect("it was signed");
    show_membership(stage, victim, DAVE, &request.change.enacted(version, signature));
}

/// A member who helps the server changes what it says.
pub(super) fn altered(stage: &mut Stage, victim: usize) {
    let request = founds_group(stage, DAVE);
    stage.does(DAVE, Call::Stat("second"));
    let signature = request.signature.expect("it was signed");
    let mut members = request.change.enacted(request.change.version + 1, signature);
    let device = DeviceId(BOB as u32);
    members.devices.get_mut(&device).expect("a member").key = server_key().public();
    show_membership(stage, victim, DAVE, &members);
}

/// The victim is shown it before the change that overtook it.
pub(super) fn reordered(stage: &mut Stage, victim: usize) {
    let request = founds_group(stage, DAVE);
    let before = stage.fork(0);
    stage.remove(BOB);
    stage.lead(DAVE, before);
    stage.lead(victim, before);
    let engine = stage.honest(DAVE).engine.clone();
    submit(&engine, &request, NOW_NS).expect("nothing came before it there");
    stage.does(DAVE, Call::Stat("second"));
    stage.lies_told.one();
}
