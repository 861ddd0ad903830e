//! Tests of the off-line file: its bytes, its messages, and bytes that must be refused.

use super::*;
use holdfast_content::{Group, Reference, User};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_protocol::structure::HandleVersion;

fn superuser() -> SigningKey {
    SigningKey::from_seed(&[1; 32])
}

fn present() -> Membership {
    let mut members = Membership::founding("team", "root", superuser().public());
    for (id, name) in [(1, "ann"), (2, "ben"), (3, "carl")] {
        members.users.insert(UserId(id), User { name: name.to_owned(), removed: false });
        let key = SigningKey::from_seed(&[id as u8 + 10; 32]).public();
        let device = Device { user: UserId(id), name: "laptop".to_owned(), key, removed_at: None };
        members.devices.insert(DeviceId(id), device);
    }
    let group = |name: &str| Group {
        name: name.to_owned(),
        members: [UserId(1), UserId(2)].into(),
        former: Default::default(),
        removed: false,
        groups: Default::default(),
    };
    members.groups.insert(GroupId(1), group("staff"));
    members.groups.insert(GroupId(2), group("guests"));
    members.quotas.insert(UserId(2), 9);
    members
}

fn request(edit: impl Fn(&mut Membership)) -> SigningRequest {
    let present = present();
    let reference: Reference = present.to_block(&DigestKey::WELL_KNOWN).expect("valid").reference();
    let mut next = present.clone();
    next.version = 5;
    edit(&mut next);
    let next = present.succeeded_by(next, 5);
    let handle = HandleVersion { version: 4, reference };
    let change = Change::new(superuser().public().file_system_id(), &handle, &next);
    let url = "hf://example.org:7440/ID".to_owned();
    SigningRequest { url, present, change, home: None, signature: None }
}

fn remove_ben(members: &mut Membership) {
    super::super::changes::remove_device(members, "ben", "laptop").expect("there");
}

#[test]
fn a_file_comes_back_and_damaged_ones_do_not() {
    let mut request = request(remove_ben);
    let unsigned = request.to_bytes().expect("valid");
    assert_eq!(SigningRequest::from_bytes(&unsigned).expect("its own"), request);
    request.sign(&superuser()).expect("the key is here");
    let bytes = request.to_bytes().expect("valid");
    assert_eq!(SigningRequest::from_bytes(&bytes).expect("its own"), request);
    let digest = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &bytes);
    assert_eq!(digest.to_string(), "15292d41a62c6417ab5e53a17274abd6fc390f99415c2f88b042dbb196520a01");

    for end in 0..bytes.len() {
        assert!(SigningRequest::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
    }
    // Only the address, which is not signed, can be altered.
    let url = 8 + 1 + 4..8 + 1 + 4 + request.url.len();
    for place in (0..bytes.len()).filter(|place| !url.contains(place)) {
        let mut altered = bytes.clone();
        altered[place] ^= 0x10;
        assert!(SigningRequest::from_bytes(&altered).is_err(), "altered at {place}");
    }
    assert!(SigningRequest::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let newer = [&bytes[..8], &[9], &bytes[9..]].concat();
    assert_eq!(SigningRequest::from_bytes(&newer), Err(ChangeFileError::Newer(9)));
    assert!(SigningRequest::from_bytes(&vec![0; FILE_BYTES_MAX + 1]).is_err());
    // Signed by another key.
    request.sign(&SigningKey::from_seed(&[2; 32])).expect("signed");
    assert_eq!(
        SigningRequest::from_bytes(&request.to_bytes().expect("valid")),
        Err(ChangeFileError::NotSigned)
    );
}

#[test]
fn a_change_that_may_not_follow_is_no_request() {
    let refused = |request: SigningRequest| {
        let bytes = request.to_bytes().expect("encodes");
        let error = SigningRequest::from_bytes(&bytes).expect_err("it may not follow");
        assert!(matches!(error, ChangeFileError::Malformed(_)), "{error}");
    };
    let mut dated = request(remove_ben);
    dated.change.next.version = 5;
    refused(dated);
    let mut erased = request(remove_ben);
    erased.change.next.users.remove(&UserId(3));
    refused(erased);
    let mut early = request(remove_ben);
    early.change.version = 0;
    refused(early);
    let mut elsewhere = request(remove_ben);
    elsewhere.change.file_system = Digest([7; 32]);
    refused(elsewhere);
    let mut nobody = request(remove_ben);
    nobody.home = Some((PrincipalId::User(UserId(1)), "ben".to_owned()));
    refused(nobody);
    let mut other = request(remove_ben);
    other.change.follows = Digest([7; 32]);
    refused(other);
}

/// The differences described by an edit as text: every difference is reported.
#[test]
fn everything_is_told() {
    type Edit = fn(&mut Membership);
    let edits: [(Edit, &str); 16] = [
        (
            |m| assert!(m.groups.get_mut(&GroupId(1)).expect("there").groups.insert(GroupId(2))),
            "group staff: @guests joins",
        ),
        (|m| assert!(m.quotas.insert(UserId(3), 7).is_none()), "user carl may store 7 bytes"),
        (|m| m.remove_group(GroupId(1)), "group staff is removed"),
        (|m| assert!(m.quotas.remove(&UserId(2)).is_some()), "user ben may store any amount"),
        (|m| m.name = "others".to_owned(), "the file system is called others"),
        (|m| m.users.get_mut(&UserId(3)).expect("there").removed = true, "user carl is removed"),
        (
            |m| m.users.get_mut(&UserId(3)).expect("there").name = "karl".to_owned(),
            "user carl is called karl",
        ),
        (
            |m| drop(m.users.insert(UserId(4), User { name: "dora".to_owned(), removed: false })),
            "user dora is added",
        ),
        (|m| m.groups.get_mut(&GroupId(1)).expect("there").removed = true, "group staff is removed"),
        (|m| m.groups.get_mut(&GroupId(1)).expect("there").name = "crew".to_owned(), "staff is called crew"),
        (|m| m.groups.get_mut(&GroupId(1)).expect("there").members.extend([UserId(3)]), "carl joins"),
        (|m| m.groups.get_mut(&GroupId(1)).expect("there").members.retain(|id| id.0 != 2), "ben leaves"),
        (
            |m| {
                drop(
                    m.groups.insert(
                        GroupId(3),
                        Group { name: "new".to_owned(), ..m.groups[&GroupId(1)].clone() },
                    ),
                )
            },
            "group new is added, with members ann, ben",
        ),
        (remove_ben, "device laptop of user ben, key ssh-ed25519 "),
        (
            |m| {
                let key = SigningKey::from_seed(&[99; 32]).public();
                let name = "desktop".to_owned();
                drop(m.devices.insert(DeviceId(9), Device { user: UserId(1), name, key, removed_at: None }));
            },
            "device desktop of user ann, key ssh-ed25519 ",
        ),
        (
            |m| m.devices.get_mut(&DeviceId(1)).expect("there").name = "tower".to_owned(),
            "was called laptop before",
        ),
    ];
    assert!(request(|_| ()).words().is_empty());
    for (edit, words) in edits {
        let told = request(edit).words();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(words), "{told:?}: {words}");
    }
    let both = request(|members| {
        remove_ben(members);
        members.groups.get_mut(&GroupId(1)).expect("there").members.remove(&UserId(2));
    });
    assert_eq!(both.words().len(), 2);
    assert_eq!(both.leavers(), [(GroupId(1), [UserId(2)].into())].into());
}
