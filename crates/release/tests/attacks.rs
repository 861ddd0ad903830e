//! What an attacker (a hostile mirror, a thief of keys, a wrong clock) may try with signed files, and the verdict on
//! each.

use crate::publisher;

use holdfast_crypto::Digest;
use holdfast_release::accept::{Accepted, ExpiredPolicy, HighestRecord, Refusal, Warning, accept};
use holdfast_release::form;
use holdfast_release::keys::{KeyChain, KeysError, Origin, ReleaseId, SignedKeySet};
use holdfast_release::record::{NotAuthentic, RootFile};
use holdfast_release::revocation::{self, RevocationError};
use holdfast_release::signing::{Signable, SignatureError, Signed};
use publisher::*;

/// What a client remembers that accepted release 5 a day after it was signed.
fn seen() -> HighestRecord {
    judge(&chain(), &published(&chain(), 5), None, at(5) + DAY_S).expect("it counts").seen
}

/// The time at which record `sequence` is signed.
fn at(sequence: u64) -> u64 {
    START_S + (sequence - 1) * DAY_S
}

fn judge(
    chain: &KeyChain,
    file: &RootFile,
    seen: Option<&HighestRecord>,
    now_s: u64,
) -> Result<Accepted, Refusal> {
    // Encoded and decoded, as from a mirror.
    let file: RootFile = form::read(&form::write(file)).expect("it is well formed");
    accept(chain, &file, seen, now_s, ExpiredPolicy::Refuse)
}

/// One row: what is shown to a client, and the refusal that must follow.
struct Attack {
    name: &'static str,
    chain: KeyChain,
    file: RootFile,
    seen: Option<HighestRecord>,
    now_s: u64,
    stale: ExpiredPolicy,
    verdict: fn(&Refusal) -> bool,
}

impl Attack {
    /// The starting point, which is accepted: release 5 a day after it was signed, shown to a client that knows it.
    fn new(name: &'static str, verdict: fn(&Refusal) -> bool) -> Attack {
        let chain = chain();
        Attack {
            name,
            file: published(&chain, 5),
            chain,
            seen: Some(seen()),
            now_s: at(5) + DAY_S,
            stale: ExpiredPolicy::Refuse,
            verdict,
        }
    }

    fn file(self, file: RootFile) -> Attack {
        Attack { file, ..self }
    }

    fn now(self, now_s: u64) -> Attack {
        Attack { now_s, ..self }
    }

    fn first_contact(self) -> Attack {
        Attack { seen: None, ..self }
    }

    fn allow_stale(self) -> Attack {
        Attack { stale: ExpiredPolicy::Allow, ..self }
    }

    fn chain(self, chain: KeyChain) -> Attack {
        Attack { chain, ..self }
    }
}

fn is_signatures(refusal: &Refusal, wanted: fn(&SignatureError) -> bool) -> bool {
    matches!(refusal, Refusal::NotAuthentic(NotAuthentic::Signatures(error)) if wanted(error))
}

fn attacks() -> Vec<Attack> {
    let chain = chain();
    let honest = published(&chain, 5);
    let of_certificates = begin(first_set_of_certificates());
    let mut other_first = first_set();
    other_first.origin = Origin::First { salt: [8; 16] };
    let other_release = begin(other_first);
    let changed = |change: fn(&mut RootFile)| {
        let mut file = published(&chain, 5);
        change(&mut file);
        file
    };
    let resigned = |change: fn(&mut holdfast_release::record::Record)| {
        let mut record = record(&chain, 5);
        change(&mut record);
        file(signed(record, &[2, 3]))
    };
    let renewal_of = |change: fn(&mut holdfast_release::record::Freshness), by: u8| {
        let mut freshness = renewal(&honest.record.value, at(6));
        change(&mut freshness);
        RootFile { freshness: Some(signed(freshness, &[by])), ..honest.clone() }
    };
    let expired_s = at(5) + LIFE_S + 1;
    vec![
        Attack::new("rollback: the release before", |r| matches!(r, Refusal::Rollback { shown: 4, seen: 5 }))
            .file(published(&chain, 4)),
        Attack::new("rollback, renewed", |r| matches!(r, Refusal::Rollback { shown: 4, seen: 5 }))
            .file(renewed(&published(&chain, 4), at(6))),
        Attack::new("equivocation: another release of the same number", |r| {
            matches!(r, Refusal::Equivocation { sequence: 5, seen, shown } if seen != shown)
        })
        .file(resigned(|record| record.root_dir = reference(0xee))),
        Attack::new("a newer release that says it is older", |r| matches!(r, Refusal::Backwards { .. })).file({
            let mut record = record(&chain, 6);
            record.issued_s = at(5) - 1;
            file(signed(record, &[2, 3]))
        }),
        Attack::new("freeze: the record shown for longer than its life", |r| matches!(r, Refusal::Expired { .. }))
            .now(expired_s),
        Attack::new("freeze: a renewal shown for longer than its life", |r| matches!(r, Refusal::Expired { .. }))
            .file(renewed(&honest, at(5) + LIFE_S))
            .now(at(5) + LIFE_S + 7 * DAY_S + 1),
        Attack::new("freeze on first contact", |r| matches!(r, Refusal::Expired { certificates: false, .. }))
            .first_contact()
            .now(expired_s),
        Attack::new("an expired certificate directory, stale allowed", |r| {
            matches!(r, Refusal::Expired { certificates: true, .. })
        })
        .chain(of_certificates.clone())
        .file(published(&of_certificates, 5))
        .first_contact()
        .allow_stale()
        .now(expired_s),
        Attack::new("from the future", |r| matches!(r, Refusal::Future { .. })).first_contact().now(at(5) - 601),
        Attack::new("a renewal from the future", |r| matches!(r, Refusal::Future { .. }))
            .file(renewed(&honest, at(6) + 601)),
        Attack::new("forged: the tree exchanged", |r| is_signatures(r, |e| matches!(e, SignatureError::False { .. })))
            .file(changed(|file| file.record.value.root_dir = reference(0xee))),
        Attack::new("forged: a longer life", |r| is_signatures(r, |e| matches!(e, SignatureError::False { .. })))
            .file(changed(|file| file.record.value.expires_s += 1)),
        Attack::new("forged: signed by strangers", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::Stranger { signer, .. } if [public(40), public(41)].contains(signer)))
        })
        .file(file(signed(record(&chain, 5), &[40, 41]))),
        Attack::new("two good signatures, and a stranger's", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::Stranger { .. }))
        })
        .file(file(signed(record(&chain, 5), &[2, 3, 40]))),
        Attack::new("two good signatures, and a false one", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::False { signer, .. } if *signer == public(1)))
        })
        .file(changed(|file| {
            let wrong = signed(record(&chain_of_tests(), 6), &[1]).signatures[&public(1)];
            file.record.signatures.insert(public(1), wrong);
        })),
        Attack::new("too few signatures", |r| {
            is_signatures(r, |e| {
                matches!(e, SignatureError::TooFew { needed: 2, signed_by, .. } if *signed_by == [public(2)])
            })
        })
        .file(file(signed(record(&chain, 5), &[2]))),
        Attack::new("no signature", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::TooFew { signed_by, .. } if signed_by.is_empty()))
        })
        .file(file(Signed::unsigned(record(&chain, 5)))),
        Attack::new("old keys after a rotation", |r| {
            matches!(r, Refusal::OlderKeySet { found: 1, current: 2 })
        })
        .chain(rotated()),
        Attack::new("old keys after a rotation, naming the new set", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::Stranger { signer, .. } if *signer == public(1)))
        })
        .chain(rotated())
        .file(file(signed(record(&rotated(), 6), &[1, 2]))),
        Attack::new("a key set that nobody knows", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::UnknownKeySet { found: 2, last: 1 }))
        })
        .file(published(&rotated(), 6)),
        Attack::new("another release of the same people", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::WrongRelease { .. }))
        })
        .file(published(&other_release, 6)),
        Attack::new("a renewal by a signer of records", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::Stranger { what: "renewal", .. }))
        })
        .file(renewal_of(|_| {}, 1)),
        Attack::new("a record by the renewer", |r| {
            is_signatures(r, |e| matches!(e, SignatureError::Stranger { what: "record", .. }))
        })
        .file(file(signed(record(&chain, 6), &[RENEWER]))),
        Attack::new("a renewal of another record", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::OtherRecord { .. }))
        })
        .file(renewal_of(|freshness| freshness.record = Digest([3; 32]), RENEWER)),
        Attack::new("a renewal of another release", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::OtherRecord { .. }))
        })
        .file(renewal_of(|freshness| freshness.release = ReleaseId(Digest([3; 32])), RENEWER)),
        Attack::new("a renewal for longer than a term", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::TermTooLong { .. }))
        })
        .file(renewal_of(|freshness| freshness.expires_s += 1, RENEWER)),
        Attack::new("a renewal beyond the renewer's own time", |r| {
            matches!(r, Refusal::NotAuthentic(NotAuthentic::TermTooLong { .. }))
        })
        .file(renewed(&honest, START_S + 730 * DAY_S - 1))
        .now(START_S + 730 * DAY_S),
        Attack::new("a clock behind by years, first contact", |r| {
            matches!(r, Refusal::Future { clock_s: 0, .. })
        })
        .first_contact()
        .now(0),
        Attack::new("a clock behind by years does not unfreeze", |r| {
            matches!(r, Refusal::Expired { clock_s: 0, .. })
        })
        .file(published(&chain, 6))
        .now(0)
        .with_latest(at(6) + LIFE_S + 1),
        Attack::new("a clock behind, led on in small steps", |r| matches!(r, Refusal::Future { .. }))
            .file(renewed(&honest, at(5) + 1))
            .now(0),
        Attack::new("a clock ahead by years", |r| matches!(r, Refusal::Expired { .. })).now(at(5) + 3650 * DAY_S),
    ]
}

/// For rows whose closures capture nothing.
fn chain_of_tests() -> KeyChain {
    chain()
}

impl Attack {
    /// The client has seen another record, signed at this time.
    fn with_latest(mut self, latest_s: u64) -> Attack {
        if let Some(seen) = &mut self.seen {
            seen.latest_s = latest_s;
        }
        self
    }
}

/// Every attack of the table is refused for its own reason, and the reason says in words what was found.
#[test]
fn every_attack_is_refused_for_its_own_reason() {
    for attack in attacks() {
        let bytes = form::write(&attack.file);
        let file: RootFile = form::read(&bytes).expect(attack.name);
        let outcome = accept(&attack.chain, &file, attack.seen.as_ref(), attack.now_s, attack.stale);
        match outcome {
            Ok(accepted) => panic!("{}: accepted {accepted:?}", attack.name),
            Err(refusal) => {
                assert!((attack.verdict)(&refusal), "{}: {refusal:?}", attack.name);
                assert!(refusal.to_string().len() > 30, "{}: {refusal}", attack.name);
            }
        }
    }
}

/// The table's starting point is accepted, so each attack fails for what it changes.
#[test]
fn what_the_attacks_change_is_accepted_as_it_is() {
    let Attack { chain, file, seen, now_s, .. } = Attack::new("none", |_| false);
    let accepted = judge(&chain, &file, seen.as_ref(), now_s).expect("nothing is wrong");
    assert_eq!((accepted.record.sequence, accepted.warnings.as_slice()), (5, [].as_slice()));
    assert_eq!(accepted.valid_until_s, at(5) + LIFE_S);
    let newer = judge(&chain, &published(&chain, 9), seen.as_ref(), at(9)).expect("numbers may be left out");
    assert_eq!(newer.seen.sequence, 9);
    let by_all = file_signed_by_all(&chain);
    assert!(judge(&chain, &by_all, None, at(5)).is_ok(), "more signatures than needed do no harm");
}

fn file_signed_by_all(chain: &KeyChain) -> RootFile {
    file(signed(record(chain, 5), &[1, 2, 3]))
}

/// One key cannot sign twice: two signatures by one key have no valid encoding, and two good ones would count once.
#[test]
fn a_doubled_signature_is_refused() {
    let once = file(signed(record(&chain(), 5), &[2]));
    let bytes = form::write(&once);
    let entry: Vec<u8> = public(2).0.iter().chain(&once.record.signatures[&public(2)].0).copied().collect();
    let place =
        bytes.windows(entry.len()).position(|window| window == entry).expect("the signature is in it");
    let mut doubled = bytes[..place - 4].to_vec();
    doubled.extend(2u32.to_le_bytes());
    doubled.extend(&entry);
    doubled.extend(&bytes[place..]);
    let refused = form::read::<RootFile>(&doubled).expect_err("it is not canonical");
    assert_eq!(refused.what, "signed record of a release");
}

/// An expired record is accepted only on request, and with a warning.
#[test]
fn stale_is_allowed_loudly() {
    let file = published(&chain(), 5);
    let now_s = at(5) + LIFE_S + 10 * DAY_S;
    let accepted = accept(&chain(), &file, None, now_s, ExpiredPolicy::Allow).expect("it was asked for");
    assert_eq!(accepted.warnings, [Warning::Stale { until_s: at(5) + LIFE_S, ago_s: 10 * DAY_S }]);
    assert!(accepted.warnings[0].to_string().starts_with("STALE"));
    let last_s = at(5) + LIFE_S;
    assert!(accept(&chain(), &file, None, last_s, ExpiredPolicy::Refuse).is_ok(), "the last second counts");
}

/// From half of a record's term on, readers are warned; a renewal starts a new term.
#[test]
fn half_life_warns() {
    let file = published(&chain(), 5);
    let half_s = at(5) + LIFE_S / 2;
    assert_eq!(judge(&chain(), &file, None, half_s - 1).expect("it counts").warnings, []);
    let warned = judge(&chain(), &file, None, half_s).expect("it counts").warnings;
    assert_eq!(warned, [Warning::HalfLife { until_s: at(5) + LIFE_S, left_s: LIFE_S / 2 }]);
    let late_s = at(5) + LIFE_S - DAY_S;
    let renewed = renewed(&file, late_s);
    let accepted = judge(&chain(), &renewed, None, late_s).expect("it counts");
    assert_eq!((accepted.valid_until_s, accepted.warnings), (late_s + 7 * DAY_S, vec![]));
}

/// A mirror that shows an older renewal than was seen changes nothing: the record counts for as long as the client
/// knows, and no longer, and the user is told.
#[test]
fn an_older_renewal_changes_nothing() {
    let file = published(&chain(), 5);
    let renewed_s = at(5) + LIFE_S;
    let known = judge(&chain(), &renewed(&file, renewed_s), None, renewed_s).expect("it counts").seen;
    let until_s = renewed_s + 7 * DAY_S;
    let shown =
        judge(&chain(), &file, Some(&known), until_s).expect("it counts by the renewal that is known");
    assert_eq!(shown.valid_until_s, until_s);
    assert_eq!(shown.seen, known);
    assert!(shown.warnings.iter().any(|w| matches!(w, Warning::OlderRenewal { .. })), "{:?}", shown.warnings);
    assert!(matches!(judge(&chain(), &file, Some(&known), until_s + 1), Err(Refusal::Expired { .. })));
}

/// A clock that is behind the newest time that was seen is reported, and that time is used. A clock that is behind
/// within the tolerance is not reported.
#[test]
fn a_clock_behind_what_was_seen_is_named() {
    let seen = seen();
    let latest_s = seen.latest_s;
    let accepted =
        judge(&chain(), &published(&chain(), 5), Some(&seen), 0).expect("it counted when it was seen");
    assert_eq!(accepted.warnings, [Warning::ClockBehind { clock_s: 0, latest_s }]);
    let words = accepted.warnings[0].to_string();
    assert!(words.contains("1970-01-01") && words.contains("2026-01-05"), "{words}");
    let near = judge(&chain(), &published(&chain(), 5), Some(&seen), latest_s - 600).expect("it counts");
    assert_eq!(near.warnings, []);
}

/// Key sets: which may follow which.
#[test]
fn key_sets_follow_one_by_one() {
    let id = chain().id();
    let third = signed(next_set(&second_set().value, &[4, 5], 2), &[2, 3, 4, 5]);
    let mut whole = rotated();
    whole.extend(third.clone()).expect("both have signed");
    whole.extend(second_set()).expect("it is known already");
    assert_eq!((whole.current().number, whole.id()), (3, id));

    let refused = |set: SignedKeySet| {
        let mut chain = chain();
        let set: SignedKeySet = form::read(&form::write(&set)).expect("it is well formed");
        let error = chain.extend(set).expect_err("it may not follow");
        assert_eq!(chain.sets().len(), 1, "a refused set changes nothing");
        error
    };
    assert_eq!(refused(third), KeysError::Skipped { expected: 2, found: 3 });

    let second = second_set().value;
    let lacks = |set: SignedKeySet, lacking: &str| match refused(set) {
        KeysError::Signatures { number: 2, error: SignatureError::TooFew { whose, .. } } => {
            assert_eq!(whose, lacking)
        }
        other => panic!("{other:?}"),
    };
    // Keys 2 and 3 are in both sets; of the others, each counts for one set.
    lacks(signed(second.clone(), &[1, 2]), "key set 2");
    lacks(signed(second.clone(), &[2, 4]), "key set 1");
    lacks(signed(second.clone(), &[]), "key set 1");
    assert!(chain().extend(signed(second.clone(), &[2, 3])).is_ok());
    assert!(matches!(
        refused(signed(second.clone(), &[2, 3, 50])),
        KeysError::Signatures { error: SignatureError::Stranger { .. }, .. }
    ));
    let mut forged = second_set();
    forged.value.role.threshold = 1;
    assert!(matches!(refused(forged), KeysError::Signatures { error: SignatureError::False { .. }, .. }));
    let mut to_certificates = second.clone();
    to_certificates.certificates = true;
    assert_eq!(refused(signed(to_certificates, &[2, 3])), KeysError::Purpose { number: 2 });
}

/// A first key set that does not match the id, or is not signed by enough of its own keys, is refused.
#[test]
fn the_first_key_set_is_the_ids() {
    let mut other = first_set();
    other.origin = Origin::First { salt: [8; 16] };
    let other = signed(other, &[1, 2]);
    assert!(matches!(KeyChain::begin(chain().id(), other), Err(KeysError::WrongId { .. })));
    let alone = signed(first_set(), &[1]);
    assert!(matches!(
        KeyChain::begin(chain().id(), alone),
        Err(KeysError::Signatures { number: 1, error: SignatureError::TooFew { .. } })
    ));
    let second = second_set();
    let by_second = ReleaseId(second.value.digest());
    assert!(KeyChain::begin(by_second, second).is_err(), "an id is the digest of a first set only");
}

/// A forked succession, with both branches signed: the one that was seen first stays, the other is refused and
/// reported, at the fork or one set later.
#[test]
fn a_forked_succession_is_named() {
    let other = signed(next_set(&first_set(), &[2, 3, 5], 2), &[1, 2, 3]);
    let mut chain = rotated();
    let known = second_set().value.digest();
    let fork = KeysError::Forked { number: 2, known, found: other.value.digest() };
    assert_eq!(chain.extend(other.clone()), Err(fork.clone()));
    assert_eq!(chain, rotated());

    let later = signed(next_set(&other.value, &[2, 3], 2), &[2, 3]);
    assert_eq!(chain.extend(later), Err(fork.clone()));

    let mut other_chain = publisher::chain();
    other_chain.extend(other.clone()).expect("by itself it is good");
    assert_eq!(chain.merge(&other_chain), Err(fork));

    // Without signatures it proves nothing, and is not reported as a fork.
    let invented = Signed { signatures: Default::default(), ..other };
    assert!(matches!(chain.extend(invented), Err(KeysError::Signatures { .. })));
}

/// A rotation of another release with the same signers is refused.
#[test]
fn a_rotation_of_another_release_is_refused() {
    let mut other = first_set();
    other.origin = Origin::First { salt: [8; 16] };
    let foreign = signed(next_set(&other, &[2, 3, 4], 2), &[2, 3]);
    assert!(matches!(chain().extend(foreign), Err(KeysError::WrongId { .. })));
}

/// A revocation certificate counts if enough keys of any one key set have signed, the old ones included.
#[test]
fn revocation_by_any_key_set() {
    for signers in [[1, 2], [2, 3], [3, 4]] {
        let bytes = form::write(&revocation(&rotated(), &signers));
        let revoked = revocation::verify(chain().id(), &bytes).expect("two of one set have signed");
        assert_eq!((revoked.release, revoked.reason.as_str()), (chain().id(), "the keys were stolen"));
    }
}

/// False certificates do not count: signed by one signer of each of two sets, by nobody, strangers, another release's
/// keys, or the renewer, or about another release.
#[test]
fn false_revocations_are_not_honoured() {
    let id = chain().id();
    let verify = |certificate: &revocation::Revocation| revocation::verify(id, &form::write(certificate));
    for (signers, too_few) in
        [(&[1, 4][..], true), (&[], true), (&[2], true), (&[40, 41], false), (&[RENEWER], false)]
    {
        let error = verify(&revocation(&rotated(), signers)).expect_err("it is false");
        match error {
            RevocationError::Signatures(SignatureError::TooFew { .. }) => assert!(too_few, "{signers:?}"),
            RevocationError::Signatures(SignatureError::Stranger { .. }) => assert!(!too_few, "{signers:?}"),
            other => panic!("{signers:?}: {other:?}"),
        }
    }
    let mut other = first_set();
    other.origin = Origin::First { salt: [8; 16] };
    let others = revocation(&begin(other), &[1, 2]);
    assert!(matches!(verify(&others), Err(RevocationError::WrongRelease { .. })));
    let mut borrowed = others.clone();
    borrowed.statement = signed(statement(&chain()), &[1, 2]);
    assert!(matches!(verify(&borrowed), Err(RevocationError::Keys(KeysError::WrongId { .. }))));
    let no_keys = revocation::Revocation { sets: vec![], ..revocation(&chain(), &[1, 2]) };
    assert!(matches!(verify(&no_keys), Err(RevocationError::Keys(KeysError::Malformed(_)))));
    let mut altered = revocation(&chain(), &[1, 2]);
    altered.statement.value.successor = Some(ReleaseId(Digest([9; 32])));
    assert!(matches!(verify(&altered), Err(RevocationError::Signatures(SignatureError::False { .. }))));
    assert!(matches!(revocation::verify(id, b"revoked!"), Err(RevocationError::Malformed(_))));
}
