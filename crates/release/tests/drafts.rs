//! Signing by several people on several machines: nothing is in force before enough have signed, and what clients would
//! refuse is never installed.

use crate::publisher;

use holdfast_crypto::Digest;
use holdfast_release::accept::{ExpiredPolicy, accept};
use holdfast_release::draft::{Draft, DraftError};
use holdfast_release::form;
use holdfast_release::keys::KeysError;
use holdfast_release::layout;
use holdfast_release::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_release::revocation;
use holdfast_release::signing::{SignatureError, Signed};
use publisher::*;

fn empty() -> Draft {
    Draft { sets: chain().sets().to_vec(), keys: None, root: None, statement: None }
}

/// A rotation to key set 2, with the record signed again under it.
fn rotation() -> Draft {
    let keys = Signed::unsigned(second_set().value);
    let root = file(Signed::unsigned(record(&rotated(), 2)));
    Draft { keys: Some(keys), root: Some(root), ..empty() }
}

/// The draft as the next machine reads it.
fn sent(draft: &Draft) -> Draft {
    form::read(&form::write(draft)).expect("a draft")
}

/// The first key set of a release is signed on two machines, one after the other.
#[test]
fn a_beginning() {
    let mut draft = Draft { sets: vec![], keys: Some(Signed::unsigned(first_set())), ..empty() };
    assert_eq!(draft.id().unwrap(), chain().id());
    assert_eq!(draft.sign(&key(1)).unwrap(), ["key set 1"]);
    let DraftError::Unfinished(parts) = draft.finish().unwrap_err() else { panic!("it is not finished") };
    let words = parts[0].to_string();
    assert!(words.starts_with("key set 1: needs 1 more of key set 1 ("), "{words}");
    let mut draft = sent(&draft);
    assert_eq!(draft.sign(&key(1)).unwrap(), Vec::<String>::new(), "nobody signs twice");
    draft.sign(&key(3)).unwrap();
    let finished = draft.finish().unwrap();
    assert_eq!((finished.chain.id(), finished.keys_are_new), (chain().id(), true));
}

/// A rotation: each signs what they may, the copies are merged, and clients accept the result.
#[test]
fn a_rotation_on_three_machines() {
    let draft = rotation();
    let (mut one, mut two, mut four) = (sent(&draft), sent(&draft), sent(&draft));
    assert_eq!(one.sign(&key(1)).unwrap(), ["key set 2"], "the old key signs the new set and no record");
    assert_eq!(two.sign(&key(2)).unwrap(), ["key set 2", "record 2"]);
    assert_eq!(four.sign(&key(4)).unwrap(), ["key set 2", "record 2"]);
    let mut all = draft;
    for (copy, lacking) in [(&two, 2), (&four, 1), (&one, 0)] {
        all.merge(copy).unwrap();
        let unsigned = all.parts().unwrap().iter().filter(|part| !part.is_signed()).count();
        assert_eq!(unsigned, lacking);
        assert_eq!(all.finish().is_ok(), lacking == 0);
    }
    let finished = all.finish().unwrap();
    let root = finished.root.unwrap();
    accept(&finished.chain, &root, None, START_S + DAY_S, ExpiredPolicy::Refuse).expect("clients believe it");
}

/// A renewal needs its own key only; a revocation needs any one key set.
#[test]
fn a_renewal_and_a_revocation() {
    let published = published(&chain(), 1);
    let freshness = Signed::unsigned(renewal(&published.record.value, START_S + DAY_S));
    let root = holdfast_release::record::RootFile { freshness: Some(freshness), ..published };
    let mut draft = Draft { root: Some(root), ..empty() };
    assert!(draft.finish().is_err());
    assert_eq!(draft.sign(&key(RENEWER)).unwrap(), ["the renewal of record 1"]);
    assert!(draft.finish().unwrap().root.unwrap().freshness.is_some());

    let sets = rotated().sets().to_vec();
    let statement = Some(Signed::unsigned(statement(&chain())));
    let mut draft = Draft { sets, statement, keys: None, root: None };
    draft.sign(&key(1)).unwrap();
    draft.sign(&key(4)).unwrap();
    let DraftError::Unfinished(parts) = draft.finish().unwrap_err() else { panic!("it is not finished") };
    assert!(parts[0].to_string().contains(", or 1 more of key set 1"), "{}", parts[0]);
    draft.sign(&key(3)).unwrap();
    let certificate = draft.finish().unwrap().revocation.unwrap();
    revocation::verify(chain().id(), &form::write(&certificate)).expect("clients honour it");
}

/// Strangers cannot sign. A draft with a false or a stranger's signature, or with parts that do not fit, is refused
/// before anybody adds theirs.
#[test]
fn what_a_draft_does_not_take() {
    assert_eq!(rotation().sign(&key(50)), Err(DraftError::NotASigner(public(50))));

    let refused = |change: fn(&mut Draft)| {
        let mut draft = rotation();
        change(&mut draft);
        let error = draft.sign(&key(2)).unwrap_err();
        assert_eq!(draft.finish().unwrap_err(), error);
        assert!(draft.merge(&draft.clone()).is_err());
        error
    };
    assert!(matches!(
        refused(|d| d.keys = Some(signed(second_set().value, &[50]))),
        DraftError::Signature(SignatureError::Stranger { .. })
    ));
    assert!(matches!(
        refused(|d| {
            let mut keys = second_set();
            keys.value.role.threshold = 1;
            d.keys = Some(keys);
        }),
        DraftError::Signature(SignatureError::False { .. })
    ));
    assert!(matches!(refused(|d| d.keys = None), DraftError::Unfit(_)));
    assert!(matches!(
        refused(|d| d.keys.as_mut().unwrap().value.number = 3),
        DraftError::Keys(KeysError::Skipped { .. })
    ));
    assert!(matches!(
        refused(|d| d.keys.as_mut().unwrap().value.certificates = true),
        DraftError::Keys(KeysError::Purpose { .. })
    ));
    assert!(matches!(
        refused(|d| {
            let previous = Digest([1; 32]);
            d.keys.as_mut().unwrap().value.origin = holdfast_release::keys::Origin::After { previous };
        }),
        DraftError::Unfit(_)
    ));
    assert!(matches!(
        refused(|d| d.root.as_mut().unwrap().record.value.release.0 = Digest([1; 32])),
        DraftError::Record(_)
    ));
    assert!(matches!(
        refused(|d| d.sets[0].signatures.clear()),
        DraftError::Keys(KeysError::Signatures { .. })
    ));
    assert!(matches!(
        refused(|d| {
            let mut freshness = renewal(&d.root.as_ref().unwrap().record.value, START_S + DAY_S);
            freshness.record = Digest([1; 32]);
            d.root.as_mut().unwrap().freshness = Some(Signed::unsigned(freshness));
        }),
        DraftError::Unfit(_)
    ));

    let mut other = rotation();
    other.root.as_mut().unwrap().record.value.note = "another".to_owned();
    assert_eq!(rotation().merge(&other), Err(DraftError::Different));
    let mut forged = rotation();
    forged.keys.as_mut().unwrap().signatures = second_set().signatures;
    forged.keys.as_mut().unwrap().signatures.values_mut().for_each(|signature| signature.0[0] ^= 1);
    let mut ours = rotation();
    assert!(matches!(ours.merge(&forged), Err(DraftError::Signature(SignatureError::False { .. }))));
    assert_eq!(ours, rotation());
}

/// A directory accepts what is finished, in an order in which it is whole at each moment, and nothing older than it
/// has.
#[test]
fn a_directory_only_goes_forward() {
    let folder = tempfile::Builder::new().prefix("holdfast-release.").tempdir().unwrap();
    let directory = ReleaseDir::new(&folder.path().join("release"));
    assert!(matches!(directory.chain(), Err(ReleaseDirError::Missing(_))));
    let install = |draft: &Draft, signers: &[u8]| {
        let mut draft = draft.clone();
        for signer in signers {
            draft.sign(&key(*signer)).unwrap();
        }
        directory.install(&draft.finish().unwrap())
    };
    let first = Draft { sets: vec![], keys: Some(Signed::unsigned(first_set())), ..empty() };
    install(&first, &[1, 2]).unwrap();
    install(&first, &[1, 2]).expect("again is no harm");
    let mut other_first = first.clone();
    other_first.keys.as_mut().unwrap().value.certificates = true;
    assert!(matches!(install(&other_first, &[1, 2]), Err(ReleaseDirError::Newer { .. })));
    assert_eq!(directory.chain().unwrap(), chain());
    assert_eq!(directory.root(&chain()).unwrap(), None);

    let release = |sequence: u64| {
        let root = file(Signed::unsigned(record(&chain(), sequence)));
        Draft { root: Some(root), ..empty() }
    };
    install(&release(1), &[1, 2]).unwrap();
    let published = directory.root(&chain()).unwrap().unwrap();
    let renewal = |issued_s: u64| {
        let freshness = Signed::unsigned(renewal(&published.record.value, issued_s));
        let root = holdfast_release::record::RootFile { freshness: Some(freshness), ..published.clone() };
        Draft { root: Some(root), ..empty() }
    };
    // A renewal does not wait for a publisher at work, who takes long.
    let publishing = holdfast_release::publish::compose::lock(&folder.path().join("release")).unwrap();
    install(&renewal(START_S + 29 * DAY_S), &[RENEWER]).unwrap();
    drop(publishing);
    assert!(matches!(
        install(&renewal(START_S + 28 * DAY_S), &[RENEWER]),
        Err(ReleaseDirError::Newer { .. })
    ));
    let mut other = release(1);
    other.root.as_mut().unwrap().record.value.note = "another".to_owned();
    assert!(matches!(install(&other, &[1, 2]), Err(ReleaseDirError::Newer { .. })));

    install(&rotation(), &[1, 2, 3]).unwrap();
    assert!(install(&release(1), &[1, 2]).is_err());
    let chain = directory.chain().unwrap();
    assert_eq!(chain.current().number, 2);
    let root = directory.root(&chain).unwrap().unwrap();
    assert_eq!(root.record.value.sequence, 2);
    let kept = std::fs::read(directory.file(&layout::record(2))).unwrap();
    assert_eq!(kept, form::write(&root));
    assert!(directory.file(&layout::record(1)).is_file());

    let statement = Some(Signed::unsigned(statement(&chain)));
    let sets = chain.sets().to_vec();
    install(&Draft { sets, statement, keys: None, root: None }, &[1, 2]).unwrap();
    assert_eq!(directory.revoked(chain.id()).unwrap().unwrap().reason, "the keys were stolen");
}

/// A timer renews while somebody publishes: in whatever order, the newest record stays, and the directory is whole at
/// every moment.
#[test]
fn renewing_while_publishing() {
    let folder = tempfile::Builder::new().prefix("holdfast-release.").tempdir().unwrap();
    let directory = ReleaseDir::new(folder.path());
    let first = Draft { sets: vec![], keys: Some(signed(first_set(), &[1, 2])), ..empty() };
    directory.install(&first.finish().unwrap()).unwrap();
    let finished = |root| Draft { root: Some(root), ..empty() }.finish().unwrap();
    directory.install(&finished(published(&chain(), 1))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 2..=30 {
                directory.install(&finished(published(&chain(), sequence))).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..60 {
                let root = directory.root(&chain()).unwrap().expect("there is one at every moment");
                let issued_s = root.record.value.issued_s + LIFE_S;
                match directory.install(&finished(renewed(&root, issued_s))) {
                    Ok(()) | Err(ReleaseDirError::Newer { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        });
    });
    assert_eq!(directory.root(&chain()).unwrap().unwrap().record.value.sequence, 30);
}
