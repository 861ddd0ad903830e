use super::*;
use crate::certificate::{Certificate, Path};
use crate::message::{MESSAGE_BYTES_MAX, Response};
use crate::order::forecast;
use crate::signed::Signed;
use crate::structure::{LogHead, Outcome};
use holdfast_content::UserId;
use holdfast_crypto::{Digest, DigestKey, Domain, Signature, decode, encode};
use proptest::prelude::*;

fn number(number: u64) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::Table, &number.to_le_bytes())
}

fn signed<T>(value: T) -> Signed<T> {
    Signed { value, signature: Signature([7; 64]) }
}

fn certificate(device: u32, number: u64) -> Certificate {
    Certificate {
        file_system: Digest::ZERO,
        device: DeviceId(device),
        number,
        previous: Digest::ZERO,
        path: Path::Slow,
        voids: Default::default(),
        ineffective: Default::default(),
        time_ns: 0,
        deltas: Vec::new(),
    }
}

fn reply(view: View) -> Response {
    let (peaks, consistency) = (vec![number(1)], vec![number(2), number(3)]);
    Response::View(Box::new(ViewReply { view, peaks, consistency, blocks: Vec::new() }))
}

/// A view of many devices: each has a slot, in no order of their numbers, and the last `pending` devices are
/// in the middle of another operation.
fn crowd(devices: u32, pending: u32) -> View {
    let mut view = View::default();
    for at in 0..devices {
        let certificate = certificate(at * 7919 % devices, 1);
        let forecast = forecast(&view, &certificate);
        let structure = Structure { forecast, outcome: Outcome::Done, handles: BTreeMap::new() };
        view.slots.insert(certificate.device, signed(structure));
        view.log = LogHead { size: u64::from(at) + 1, root: number(at.into()) };
    }
    for at in 0..pending {
        let certificate = signed(certificate(at, 2));
        let forecast = forecast(&view, &certificate.value);
        view.pending.push(PendingEntry { certificate, forecast, dead: at % 5 == 1 });
        view.log.size += 1;
    }
    view
}

/// Proves: the size of a packed view of many devices grows hardly faster than their number (plain, with its
/// square), also if every fifth is dead, and unpacking restores it. A view with 1,000 pending operations is
/// far from the limit.
#[test]
fn crowds_are_small() {
    let sizes = [100, 200].map(|devices| {
        let response = reply(crowd(devices, devices));
        let bytes = encode(&response);
        assert_eq!(decode::<Response>(&bytes).expect("what was packed"), response);
        bytes.len()
    });
    assert!(sizes[1] < sizes[0] * 5 / 2, "{sizes:?}");
    // What it would be if it grew with the square.
    assert!(sizes[1] * 25 < MESSAGE_BYTES_MAX, "{sizes:?}");
}

fn view_reply(view: View) -> ViewReply {
    let Response::View(reply) = reply(view) else { unreachable!("it is one") };
    *reply
}

/// Puts signatures into the slots that differ as real ones do.
fn sign_slots(view: &mut View) {
    for (device, slot) in &mut view.slots {
        let digest = number(u64::from(device.0) << 32 | slot.value.forecast.number());
        slot.signature.0[..32].copy_from_slice(&digest.0);
    }
}

/// Devices act once more, one after the other.
fn act(view: &mut View, devices: &[u32]) {
    for &device in devices {
        let again = certificate(device, view.slots[&DeviceId(device)].value.number() + 1);
        let forecast = forecast(view, &again);
        let structure = Structure { forecast, outcome: Outcome::Done, handles: BTreeMap::new() };
        view.slots.insert(DeviceId(device), signed(structure));
        view.log = LogHead { size: view.log.size + 1, root: number(view.log.size) };
    }
    sign_slots(view);
}

/// Proves: the changes of a few devices take few bytes, however many devices there are. They restore the
/// whole view for a reader who has the view before, and are an error for a reader who has another.
#[test]
fn differences_are_small() {
    let sizes = [100, 1000].map(|devices| {
        let mut before = crowd(devices, 0);
        sign_slots(&mut before);
        let mut now = before.clone();
        act(&mut now, &[3, 77, 3]);
        let whole = view_reply(now.clone());
        let since = before.log.size;
        let difference =
            Difference::of(&whole, since, |device| now.slots[&device].value.forecast.log.size + 1 < since);
        let difference = decode::<Difference>(&encode(&difference)).expect("what was encoded");
        assert_eq!(*difference.resolve(&before, since).expect("resolved"), whole);
        // Also for a reader who has already learned some of what is sent.
        let mut ahead = before.clone();
        act(&mut ahead, &[77]);
        assert_eq!(*difference.resolve(&ahead, since).expect("resolved"), whole);
        act(&mut ahead, &[4]);
        for (base, log_size) in [(&ahead, since), (&View::default(), since), (&before, since + 1)] {
            let error = difference.resolve(base, log_size).expect_err("another view");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        encode(&difference).len()
    });
    assert!(sizes[0] < 1500 && sizes[1] < sizes[0] + 10, "{sizes:?}");
    // The slots of hundreds of devices are known to fit without packing them; for thousands this is not
    // known.
    assert!(slots_bytes_at_most(&crowd(500, 0).slots) < MESSAGE_BYTES_MAX);
    assert!(slots_bytes_at_most(&crowd(1000, 0).slots) > MESSAGE_BYTES_MAX);
}

/// Proves: few bytes cannot stand for more than a reader may be made to hold.
#[test]
fn bombs_are_refused() {
    let record = |at: u64| Record { device: DeviceId(1), number: at, forecast: number(at) };
    let of = |vector: VersionVector, pending: Vec<Record>| Forecast {
        file_system: Digest::ZERO,
        device: DeviceId(1),
        vector,
        pending,
        aborted: Vec::new(),
        voids: Default::default(),
        ineffective: Default::default(),
        certificate: Digest::ZERO,
        log: LogHead::default(),
    };
    let view = |forecasts: Vec<Forecast>| View {
        pending: forecasts
            .into_iter()
            .map(|forecast| PendingEntry { certificate: signed(certificate(1, 1)), forecast, dead: false })
            .collect(),
        ..View::default()
    };
    let records: Vec<Record> = (0..4096).map(record).collect();
    let vector = |at: u64| {
        let versions = (0..16_384).map(|id| (PrincipalId::User(UserId(id)), u64::from(id) + at));
        let mut versions: BTreeMap<_, _> = versions.collect();
        for (version, at) in versions.values_mut().skip(1).zip(2..) {
            *version = at;
        }
        VersionVector::from(versions)
    };
    let lists = view((0..1000).map(|_| of(VersionVector::default(), records.clone())).collect());
    let vectors = view((0..1000).map(|at| of(vector(at), Vec::new())).collect());
    for view in [lists, vectors] {
        let bytes = encode(&reply(view));
        assert!(bytes.len() < MESSAGE_BYTES_MAX);
        let error = decode::<Response>(&bytes).expect_err("too much");
        assert!(error.to_string().contains("more than can be held"), "{error}");
    }
}

fn any_forecast() -> impl Strategy<Value = Forecast> {
    let principal = (0..4_u32, 0..3).prop_map(|(id, kind)| match kind {
        0 => PrincipalId::Members,
        1 => PrincipalId::Device(DeviceId(id)),
        _ => PrincipalId::User(UserId(id)),
    });
    let vector = prop::collection::btree_map(principal, 0..3_u64, 0..6);
    let record =
        (0..9_u64).prop_map(|at| Record { device: DeviceId(at as u32), number: at, forecast: number(at) });
    let records = prop::collection::vec(record, 0..8);
    // Often all of them in order, like honest ones.
    let records = prop_oneof![
        records,
        (0..9_u64, 0..9_u64).prop_map(|(first, count)| {
            (first..first + count)
                .map(|at| Record { device: DeviceId(at as u32), number: at, forecast: number(at) })
                .collect()
        })
    ];
    (vector, records.clone(), records, 0..4_u32, 0..5_u64).prop_map(
        |(vector, pending, aborted, device, size)| Forecast {
            file_system: Digest::ZERO,
            device: DeviceId(device),
            vector: VersionVector::from(vector),
            pending,
            aborted,
            voids: Default::default(),
            ineffective: Default::default(),
            certificate: number(size),
            log: LogHead { size, root: number(size) },
        },
    )
}

prop_compose! {
    fn any_view()(
        slots in prop::collection::btree_map(0..9_u32, any_forecast(), 0..6),
        pending in prop::collection::vec((any_forecast(), any::<bool>()), 0..6),
    ) -> View {
        let structure = |forecast| Structure { forecast, outcome: Outcome::Done, handles: BTreeMap::new() };
        let slots = slots.into_iter().map(|(device, forecast)| (DeviceId(device), signed(structure(forecast))));
        let entry = |(forecast, dead)| PendingEntry { certificate: signed(certificate(1, 1)), forecast, dead };
        View { slots: slots.collect(), pending: pending.into_iter().map(entry).collect(), log: LogHead::default() }
    }
}

proptest! {
    /// Proves: for any two views, the difference of one from the other restores it. An altered difference
    /// gives an error or another view, without harm.
    #[test]
    fn whatever_differs_comes_back(
        mut base in any_view(),
        mut view in any_view(),
        common in prop::collection::btree_set(0..9_u32, 0..6),
        at in any::<prop::sample::Index>(),
        flip in 1..=255_u8,
    ) {
        sign_slots(&mut base);
        sign_slots(&mut view);
        for device in common.into_iter().map(DeviceId) {
            base.slots.remove(&device);
            base.slots.extend(view.slots.get(&device).map(|slot| (device, slot.clone())));
        }
        let whole = view_reply(view);
        // A view never loses a device that an earlier one had, so a difference cannot express that.
        base.slots.retain(|device, _| whole.view.slots.contains_key(device));
        let difference = Difference::of(&whole, 7, |device| base.slots.get(&device) == whole.view.slots.get(&device));
        prop_assert_eq!(&*difference.resolve(&base, 7).expect("resolved"), &whole);
        let mut bytes = encode(&difference);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(other) = decode::<Difference>(&bytes) {
            let _ = other.resolve(&base, 7);
        }
    }

    /// Proves: the bound of the slots' packed size is never less than their packed size, nor than a third of
    /// what a reader needs for them in memory.
    #[test]
    fn bounds_hold(view in any_view()) {
        let slots = view.slots.clone();
        let whole = view_reply(View { pending: Vec::new(), ..view });
        let mut bytes = Vec::new();
        let plain = write(&whole, &mut bytes).expect("memory");
        let bound = slots_bytes_at_most(&slots);
        prop_assert!(bytes.len() <= bound && plain.0 <= 3 * bound, "{} {} {bound}", bytes.len(), plain.0);
    }

    /// Proves: packing and unpacking restores any view, even an impossible one; and accepted bytes are the
    /// only ones for their view.
    #[test]
    fn whatever_is_packed_comes_back(view in any_view(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let response = reply(view);
        let mut bytes = encode(&response);
        prop_assert_eq!(&decode::<Response>(&bytes).expect("what was packed"), &response);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(other) = decode::<Response>(&bytes) {
            prop_assert_eq!(encode(&other), bytes);
        }
    }
}
