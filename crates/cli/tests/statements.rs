//! The files of `holdfast evidence`: their format does not change unnoticed, and no alteration makes one convict
//! somebody who did nothing. The signers and the server are the real machines (`holdfast_sim::order`).

use holdfast_client::evidence::{EvidenceFile, Proof, parse};
use holdfast_client::statement::{
    Conclusion, LabeledStatement, Limits, Statement, UnusableStatement, verify,
};
use holdfast_content::{DeviceId, MemoryBlocks};
use holdfast_crypto::{DigestKey, SigningKey, encode};
use holdfast_protocol::message::Request;
use holdfast_protocol::peers::{AcknowledgedOperation, DeviceProgress};
use holdfast_protocol::signed::Signed;
use holdfast_sim::order::client::{Client, ClientAction, WorldRequest};
use holdfast_sim::order::ledger::Ledger;
use holdfast_sim::order::server::Server;
use holdfast_sim::order::{device_key, found};
use holdfast_sim::random::Random;
use std::path::PathBuf;
use std::rc::Rc;

const LIMITS: Limits = Limits { paths: 1000, differences: 100 };
const A: DeviceId = DeviceId(1);
const B: DeviceId = DeviceId(2);

struct World {
    blocks: Rc<MemoryBlocks>,
    founding: Request,
    random: Random,
    ledger: Ledger,
}

impl World {
    fn new() -> World {
        let blocks = Rc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
        let (_, _, founding) = found(&blocks, 3);
        World { blocks, founding, random: Random::new(1), ledger: Ledger::default() }
    }

    /// The server, and another that shows another order from the same beginning.
    fn server(&self) -> Server {
        Server::create(self.blocks.clone(), 1000, self.founding.clone()).0
    }

    fn client(&self, device: DeviceId) -> Client {
        Client::new(device, self.blocks.clone())
    }

    /// Runs one operation to its end.
    fn operate(&mut self, client: &mut Client, server: &mut Server, action: ClientAction) {
        client.wishes.push(action);
        let mut wanted = client.begin(&mut self.random, &mut self.ledger, 0);
        while let Some(want) = wanted.pop() {
            wanted = match want {
                WorldRequest::Fold => client.fold(&mut self.random, &mut self.ledger, 0),
                WorldRequest::Send(request) => {
                    let response = server.handle(0, client.device, *request);
                    server.sync();
                    client.answer(response, &mut self.random, &mut self.ledger, 0)
                }
            };
        }
        assert!(client.is_idle() && client.alarms.is_empty() && client.errors.is_empty());
    }

    fn statement(&self, client: &Client) -> Statement {
        Statement::of(client.signer().expect("up").floor().clone(), None, &*self.blocks)
    }
}

fn testimony(label: &str, statement: &Statement) -> LabeledStatement {
    LabeledStatement {
        label: label.to_owned(),
        made_ns: 1_700_000_000_000_000_000,
        statement: statement.clone(),
        met: None,
    }
}

fn judge(statements: &[&Statement]) -> Result<Conclusion, UnusableStatement> {
    let testimonies: Vec<_> = statements.iter().map(|statement| testimony("a file", statement)).collect();
    verify(&testimonies, LIMITS).map(|verdict| verdict.conclusion)
}

/// A's and B's statements after a fork at the very beginning, of `operations` each.
fn forked(operations: [u32; 2]) -> [Statement; 2] {
    let mut world = World::new();
    let (mut one, mut other) = (world.server(), world.server());
    let (mut a, mut b) = (world.client(A), world.client(B));
    for _ in 0..operations[0] {
        world.operate(&mut a, &mut one, ClientAction::Own);
    }
    for _ in 0..operations[1] {
        world.operate(&mut b, &mut other, ClientAction::Group);
    }
    [world.statement(&a), world.statement(&b)]
}

/// Statements of an honest history, at several moments.
fn honest() -> Vec<Statement> {
    let mut world = World::new();
    let mut server = world.server();
    let (mut a, mut b) = (world.client(A), world.client(B));
    let mut statements = Vec::new();
    for round in 0..6 {
        let (who, action) =
            if round % 3 == 0 { (&mut b, ClientAction::Group) } else { (&mut a, ClientAction::Own) };
        world.operate(who, &mut server, action);
        statements.extend([world.statement(&a), world.statement(&b)]);
    }
    statements
}

/// Proves: any selection of honest statements, old and new, is consistent.
#[test]
fn honest_statements_fit() {
    let statements = honest();
    for one in &statements {
        for other in &statements {
            if one.floor.view.slots.is_empty() && other.floor.view.slots.is_empty() {
                continue;
            }
            assert_eq!(judge(&[one, other]), Ok(Conclusion::Fits));
        }
    }
    let all: Vec<&Statement> = statements.iter().collect();
    assert_eq!(judge(&all), Ok(Conclusion::Fits));
}

/// Proves: a fork convicts the server if both sides have its receipts. Without them the verdict is that one of several
/// lied, or there is none.
#[test]
fn forks_convict_by_receipts() {
    for operations in [[1, 1], [1, 3], [3, 1], [2, 2]] {
        let [a, b] = forked(operations);
        assert_eq!(judge(&[&a]), Ok(Conclusion::Fits));
        assert_eq!(judge(&[&b]), Ok(Conclusion::Fits));
        assert_eq!(judge(&[&a, &b]), Ok(Conclusion::ServerLied), "{operations:?}");
        let mut unsure = b.clone();
        unsure.floor.receipt = None;
        let found = judge(&[&a, &unsure]).expect("usable");
        assert!(found < Conclusion::KeyUsedTwice, "{operations:?}: {found:?}");
        // What B's server signed for another device is no receipt for this operation.
        unsure.floor.receipt.clone_from(&a.floor.receipt);
        assert!(judge(&[&a, &unsure]).expect("usable") < Conclusion::KeyUsedTwice);
    }
}

/// Proves: whatever B signs, or invents, beside A's true statement convicts neither the server nor A.
#[test]
fn nobody_is_framed() {
    let statements = honest();
    let a = &statements[statements.len() - 2];
    let b = &statements[statements.len() - 1];
    let mut random = Random::new(7);
    for round in 0..300 {
        let mut forged = b.clone();
        let own = forged.floor.view.slots.get_mut(&B).expect("B has taken part");
        let forecast = &mut own.value.forecast;
        match round % 4 {
            0 => forecast.log.size = random.below(12),
            1 => forecast.vector.set(holdfast_content::PrincipalId::Device(A), random.below(9)),
            2 => forecast.aborted = forecast.pending.drain(..).collect(),
            _ => forecast.log.root.0[0] ^= 1,
        }
        let signer = if random.chance(80) { device_key(B) } else { SigningKey::from_seed(&[0x77; 32]) };
        *own = Signed::new(own.value.clone(), &signer);
        match verify(&[testimony("true", a), testimony("forged", &forged)], LIMITS) {
            Ok(verdict) => {
                assert_ne!(verdict.conclusion, Conclusion::ServerLied, "{round}");
                for clash in verdict.contradictions {
                    let named = clash.suspects.iter().any(|suspect| suspect.contains("(device 2)"));
                    assert!(named, "{round}: B, who lied, is left out of {:?}", clash.suspects);
                }
            }
            Err(error) => assert!(matches!(error, UnusableStatement::Forged { .. }), "{round}: {error}"),
        }
    }
    // Other keys in place of the superuser's, and a membership that the superuser did not sign.
    let mut forged = b.clone();
    forged.floor.superuser = SigningKey::from_seed(&[0x77; 32]).public();
    assert!(matches!(judge(&[&forged]), Err(UnusableStatement::Forged { .. })));
    forged.floor.epoch = forged.floor.superuser.file_system_id();
    assert!(matches!(judge(&[&forged]), Err(UnusableStatement::Forged { .. })));
    let mut forged = b.clone();
    forged.blocks.clear();
    assert!(matches!(judge(&[&forged]), Err(UnusableStatement::NoMembership { .. })));
    let mut forged = b.clone();
    forged.blocks[0].block.body[20] ^= 1;
    assert!(matches!(judge(&[&forged]), Err(UnusableStatement::Forged { .. })));
}

/// Proves: a file that was cut, or has altered bytes, is refused, or says less than before; it convicts nobody new, and
/// the reader does not panic.
#[test]
fn damage_convicts_nobody() {
    let [a, b] = forked([2, 2]);
    let bytes = encode(&b.clone().into_evidence("a test".to_owned()));
    let mut random = Random::new(3);
    let (mut refused, mut judged) = (0, 0);
    for round in 0..3000 {
        let mut bytes = bytes.clone();
        if round % 3 == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        } else {
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let Some(statement) = parse(&bytes).ok().and_then(|file| Statement::of_evidence(&file)) else {
            refused += 1;
            continue;
        };
        judged += 1;
        if let Ok(alone) = judge(&[&statement]) {
            assert!(alone < Conclusion::OneOfSeveralLied, "{round}: alone it says {alone:?}");
        }
        if let Ok(together) = judge(&[&a, &statement]) {
            assert_ne!(together, Conclusion::KeyUsedTwice, "{round}");
        }
    }
    assert!(refused > 1000 && judged > 100, "{refused} {judged}");
}

fn golden_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/statement-2.evidence")
}

/// Proves: a file that an earlier version wrote is read, says what it said, and is written again byte by byte.
/// (`HOLDFAST_BLESS=1` writes a new one.)
#[test]
fn files_of_earlier_versions_are_read() {
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        let [a, _] = forked([3, 1]);
        let file =
            EvidenceFile { noticed_ns: 1_700_000_000_000_000_000, ..a.into_evidence("golden".to_owned()) };
        std::fs::create_dir_all(golden_file().parent().expect("a folder")).expect("made");
        std::fs::write(golden_file(), encode(&file)).expect("written");
    }
    let bytes = std::fs::read(golden_file()).expect("the golden file");
    let file = parse(&bytes).expect("format 2");
    assert_eq!((file.format, file.device, file.noticed_ns), (2, Some(A), 1_700_000_000_000_000_000));
    assert_eq!(encode(&file), bytes);
    let statement = Statement::of_evidence(&file).expect("a statement");
    let verdict = verify(&[testimony("golden", &statement)], LIMITS).expect("usable");
    assert_eq!(verdict.conclusion, Conclusion::Fits);
    assert_eq!((verdict.statements[0].last_operation, verdict.statements[0].has_receipt), (3, true));
    // Together with the other side of its fork, which is made anew with the same keys.
    let [_, b] = forked([3, 1]);
    assert_eq!(judge(&[&statement, &b]), Ok(Conclusion::ServerLied));
    let mut newer = bytes;
    newer[0] = 4;
    assert!(parse(&newer).expect_err("newer").to_string().contains("newer than this program"));
}

/// Proves: the evidence of a device that met another is one file, which is read back as it was and convicts by itself.
/// If its receipt is none, it convicts nobody.
#[test]
fn a_meeting_is_one_file() {
    let [a, b] = forked([3, 1]);
    let met = DeviceProgress::of(&b.floor).operation.expect("it has a receipt");
    let judged = |met: AcknowledgedOperation| {
        let proof = Proof::Meeting { statement: Box::new(a.clone()), met: Box::new(met) };
        let file = EvidenceFile { format: 3, proof, ..a.clone().into_evidence("met".to_owned()) };
        let bytes = encode(&file);
        let read = parse(&bytes).expect("format 3");
        assert_eq!(encode(&read), bytes);
        let statement = Statement::of_evidence(&read).expect("a statement");
        let Proof::Meeting { met, .. } = read.proof else { panic!("another proof") };
        let met_statement = LabeledStatement { met: Some(*met), ..testimony("met", &statement) };
        verify(&[met_statement], LIMITS).expect("usable")
    };
    assert_eq!(judged(met.clone()).conclusion, Conclusion::ServerLied);
    let mut forged = met;
    forged.receipt.value.number += 1;
    let verdict = judged(forged);
    assert_eq!(verdict.conclusion, Conclusion::Fits);
    let remarks = verdict.statements[0].remarks.join(" ");
    assert!(remarks.contains("proves nothing"), "{remarks}");
}
