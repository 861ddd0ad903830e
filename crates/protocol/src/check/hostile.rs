//! Hostile input: for whatever bytes or values a server sends, the check accepts or refuses; it never panics.
//!
//! Values are changed to extremes, one place at a time, and signed again, as a server could that colludes
//! with all other devices.

use super::{check, check_look};
use crate::certificate::{Delta, Path};
use crate::message::ViewReply;
use crate::signed::Signed;
use crate::structure::{Outcome, Record, Structure};
use crate::testing::random::Random;
use crate::testing::{A, B, C, Client, GROUP, Stage, key, membership};
use crate::vector::VoidSet;
use holdfast_content::{DeviceId, Handle, PrincipalId};
use holdfast_crypto::{Digest, decode, encode};

/// A client with some history, and an honest reply to its next operation with slots, a live and a dead
/// pending entry.
fn scene() -> (Client, Signed<crate::certificate::Certificate>, ViewReply) {
    let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
    let mut stage = Stage::new();
    let group = || vec![Delta::SetTable { file: Handle { principal: GROUP, number: 1 }, number: Some(1) }];
    for client in [&mut a, &mut b, &mut c] {
        let certificate = client.declare(Path::Slow, group());
        let reply = stage.proven(&client.floor);
        let accepted = check(&client.floor, &membership(), &reply, &certificate.value).expect("honest");
        client.floor = accepted.floor;
        let structure = client.structure(&certificate.value, accepted.forecast);
        client.acknowledge(&structure);
        stage.order(&certificate);
        stage.commit(&structure);
    }
    stage.order(&b.declare(Path::Slow, group()));
    stage.kill(B);
    stage.order(&c.declare(Path::Slow, group()));
    let certificate = a.declare(Path::Slow, group());
    let reply = stage.proven(&a.floor);
    (a, certificate, reply)
}

#[test]
fn mutated_bytes_never_panic() {
    let (client, certificate, reply) = scene();
    check(&client.floor, &membership(), &reply, &certificate.value).expect("the scene is honest");
    let bytes = encode(&reply);
    let mut random = Random::new(1);
    let (mut decoded, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut mutated = bytes.clone();
        for _ in 0..=random.below(3) {
            let place = random.below(mutated.len() as u64) as usize;
            match random.below(4) {
                0 => mutated[place] = random.number() as u8,
                1 => mutated[place] ^= 1 << random.below(8),
                2 => mutated.truncate(place.max(1)),
                _ => mutated.insert(place, random.number() as u8),
            }
        }
        if let Ok(reply) = decode::<ViewReply>(&mutated) {
            decoded += 1;
            let checked = check(&client.floor, &membership(), &reply, &certificate.value);
            refused += u32::from(checked.is_err());
            let _ = check_look(&client.floor, &membership(), &reply);
        }
    }
    assert!(decoded > 500 && refused * 10 > decoded * 9, "{refused} of {decoded} refused");
}

const EXTREMES: [u64; 7] = [0, 1, 2, 3, u64::MAX / 2, u64::MAX - 1, u64::MAX];

fn mutate(random: &mut Random, structure: &mut Structure) {
    let extreme = *random.pick(&EXTREMES);
    let device = DeviceId(random.below(6) as u32);
    let user = PrincipalId::User(holdfast_content::UserId(random.below(6) as u32));
    let principal = *random.pick(&[PrincipalId::Members, GROUP, PrincipalId::Device(device), user]);
    let forecast = &mut structure.forecast;
    match random.below(13) {
        0 => forecast.vector.set(principal, extreme),
        1 => drop(forecast.vector.versions_mut().insert(principal, extreme)),
        2 => forecast.log.size = extreme,
        3 => forecast.log.root = Digest([random.number() as u8; 32]),
        4 => forecast.pending.push(Record { device, number: extreme, forecast: Digest::ZERO }),
        5 => forecast.aborted.push(Record { device, number: extreme, forecast: Digest::ZERO }),
        6 => forecast.voids = VoidSet([(extreme, *random.pick(&EXTREMES)), (3, 3)].into()),
        7 => forecast.ineffective = VoidSet([(extreme, *random.pick(&EXTREMES))].into()),
        8 => forecast.device = device,
        9 => forecast.file_system = Digest::ZERO,
        10 => structure.outcome = Outcome::Nothing,
        11 => {
            if let Some(handle) = structure.handles.get_mut(&principal) {
                handle.version = extreme;
            }
        }
        _ => {
            let handle = structure.handles.values().next().copied();
            structure.handles.extend(handle.map(|handle| (principal, handle)));
        }
    }
}

#[test]
fn mutated_values_never_panic() {
    let (client, certificate, honest) = scene();
    let mut random = Random::new(2);
    let mut refused = 0;
    let rounds = 6000;
    for _ in 0..rounds {
        let mut reply = honest.clone();
        for _ in 0..=random.below(2) {
            match random.below(4) {
                0 | 1 => {
                    let device = DeviceId(random.below(4) as u32);
                    let slot = reply.view.slots.get_mut(&device).expect("all have slots");
                    let mut structure = slot.value.clone();
                    mutate(&mut random, &mut structure);
                    *slot = Signed::new(structure, &key(device));
                }
                2 => {
                    let index = random.below(2) as usize;
                    let entry = &mut reply.view.pending[index];
                    let mut structure = Structure {
                        forecast: entry.forecast.clone(),
                        outcome: Outcome::Done,
                        handles: Default::default(),
                    };
                    mutate(&mut random, &mut structure);
                    entry.forecast = structure.forecast;
                    entry.dead ^= random.chance(20);
                }
                _ => {
                    let index = random.below(2) as usize;
                    let entry = &mut reply.view.pending[index];
                    let mut declared = entry.certificate.value.clone();
                    match random.below(4) {
                        0 => declared.number = *random.pick(&EXTREMES),
                        1 => declared.voids = VoidSet([(1, *random.pick(&EXTREMES))].into()),
                        2 => declared.device = DeviceId(random.below(6) as u32),
                        _ => declared.path = Path::Fast,
                    }
                    let signer = key(declared.device);
                    entry.certificate = Signed::new(declared, &signer);
                }
            }
        }
        let checked = check(&client.floor, &membership(), &reply, &certificate.value);
        if let Err(alarm) = &checked {
            assert!(!alarm.explain().is_empty());
        }
        refused += u32::from(checked.is_err());
        let _ = check_look(&client.floor, &membership(), &reply);
    }
    assert!(refused * 10 > rounds * 8, "{refused} of {rounds} refused");
}
