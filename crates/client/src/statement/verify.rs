//! Judges what statements prove, alone and together.
//!
//! The steps are: the superuser's key must match the file system's id; the membership must be the one that
//! the superuser's structure refers to; then every structure with a valid signature is an exhibit, and
//! [`holdfast_protocol::judge`] looks for contradictions among the exhibits of all statements. Only a
//! contradiction convicts. The rest (whether a refused reply really contradicts the floor beside it, how
//! files differ) is reported together with whose word it rests on.

use super::blocks::Sources;
use super::branch::{Branch, Comparison, Limits, compare};
use super::{Statement, device_name};
use holdfast_content::{BlockSource, ContentError, DeviceId, Membership, SourceError};
use holdfast_crypto::Digest;
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::check::{authentic, check_look, membership_holds, membership_wanted};
use holdfast_protocol::epoch::Epochs;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::judge::{Contradiction, Exhibit, Suspect, contradictions};
use holdfast_protocol::message::ViewReply;
use holdfast_protocol::peers::{AcknowledgedOperation, verify_progress};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{Structure, View};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The device of a bystander: one that never took part.
const BYSTANDER: DeviceId = DeviceId(u32::MAX);
/// Most remarks about one statement.
const REMARKS_MAX: usize = 16;

/// A statement to be judged, with its file and what came with it.
#[derive(Clone, Debug)]
pub struct LabeledStatement {
    /// A label for the statement: the name of its file.
    pub label: String,
    /// When it was made, by its machine's clock.
    pub made_ns: i64,
    /// The statement.
    pub statement: Statement,
    /// An operation of another device, with the server's receipt, that the device received directly from it.
    pub met: Option<AcknowledgedOperation>,
}

/// Why a statement cannot be judged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnusableStatement {
    /// It contradicts itself in a way that no honest program produces.
    #[error("{label}: it is forged or damaged: {why}")]
    Forged {
        /// The file that the statement came in.
        label: String,
        /// What in it is forged or damaged.
        why: String,
    },
    /// The membership by which its signatures are checked is missing.
    #[error("{label}: the membership that its signatures are checked by is not in it")]
    NoMembership {
        /// The file that the statement came in.
        label: String,
    },
    /// The statements are of different file systems.
    #[error("{first} is of file system {one}, {second} of {other}: they say nothing about each other")]
    OtherFileSystem {
        /// The file that the first statement came in.
        first: String,
        /// The file system that it is of.
        one: Digest,
        /// The file that the second statement came in.
        second: String,
        /// The file system that it is of.
        other: Digest,
    },
}

/// Conclusions, the strongest last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// Nothing contradicts anything else.
    Fits,
    /// A reply was refused rightly, if it was given; but no signature proves that it was given.
    AsTold,
    /// Signatures contradict each other, so one of several suspects must have lied.
    OneOfSeveralLied,
    /// A device's key signed two things that contradict each other.
    KeyUsedTwice,
    /// The server's key signed two things that contradict each other.
    ServerLied,
}

/// The result of judging statements.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The strongest finding.
    pub conclusion: Conclusion,
    /// The file system's id.
    pub file_system: String,
    /// The file system's name, given by its superuser.
    pub name: String,
    /// The statements that were judged.
    pub statements: Vec<StatementReport>,
    /// Operations that contradict each other.
    pub contradictions: Vec<ContradictionReport>,
    /// How the views of two sides differ, where there are two.
    pub sides: Option<SidesReport>,
}

/// One statement, described in words.
#[derive(Clone, Debug, Serialize)]
pub struct StatementReport {
    /// The file that the statement came in.
    pub label: String,
    /// The device that makes the statement.
    pub by: String,
    /// Time of the statement by that machine's clock, in nanoseconds since 1970.
    pub made_ns: i64,
    /// Number of the device's own last operation that it knew to be committed.
    pub last_operation: u64,
    /// Whether the statement has a valid receipt of the server for that operation.
    pub has_receipt: bool,
    /// Length of the log of updates that it had accepted.
    pub log_size: u64,
    /// Number of structures in it with valid signatures.
    pub signatures: usize,
    /// Another device's operation that it received directly, in words.
    pub met: Option<String>,
    /// The reply that it refused, in words.
    pub refused: Option<String>,
    /// Whether a check here confirms that the refused reply contradicts what the device had accepted.
    pub refused_rightly: Option<bool>,
    /// Whether all metadata is in it.
    pub is_whole: bool,
    /// Oddities in it that prove nothing.
    pub remarks: Vec<String>,
}

/// Two operations that cannot both be genuine.
#[derive(Clone, Debug, Serialize)]
pub struct ContradictionReport {
    /// The first operation, in words.
    pub first: String,
    /// The second operation, in words.
    pub second: String,
    /// How they contradict each other.
    pub why: String,
    /// The suspects, of whom at least one lied.
    pub suspects: Vec<String>,
    /// Whether there is only one suspect, so that this is proof.
    pub is_proof: bool,
}

/// How the views of two sides differ.
#[derive(Clone, Debug, Serialize)]
pub struct SidesReport {
    /// The first side, in words.
    pub ours: String,
    /// The second side, in words.
    pub theirs: String,
    /// How many operations of each device both sides know.
    pub devices: Vec<DeviceKnowledge>,
    /// Which files differ, as far as could be determined.
    pub files: Comparison,
}

/// How many operations of a device each side knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceKnowledge {
    /// The device.
    pub device: String,
    /// Operations known to the first side.
    pub ours: u64,
    /// Operations known to the second side.
    pub theirs: u64,
}

/// A statement that was found not to contradict itself.
struct CheckedStatement<'a> {
    testimony: &'a LabeledStatement,
    /// The membership by which the accepted structures were checked; `None` before the first view.
    membership: Option<Membership>,
    refused_membership: Option<Membership>,
    exhibits: Vec<Exhibit<'a>>,
    told: StatementReport,
}

/// Judges statements of one file system. At least one must be given.
///
/// # Errors
/// [`UnusableStatement`]: the first that cannot be judged.
pub fn verify(testimonies: &[LabeledStatement], limits: Limits) -> Result<Verdict, UnusableStatement> {
    let mut prepared = Vec::new();
    for testimony in testimonies {
        prepared.push(prepare(testimony)?);
    }
    for pair in prepared.windows(2) {
        let id = |prepared: &CheckedStatement<'_>| prepared.testimony.statement.floor.file_system();
        if id(&pair[0]) != id(&pair[1]) {
            return Err(UnusableStatement::OtherFileSystem {
                first: pair[0].told.label.clone(),
                one: id(&pair[0]),
                second: pair[1].told.label.clone(),
                other: id(&pair[1]),
            });
        }
    }
    let newest = prepared
        .iter()
        .flat_map(|prepared| [&prepared.membership, &prepared.refused_membership])
        .flatten()
        .max_by_key(|membership| membership.version)
        .cloned()
        .ok_or_else(|| UnusableStatement::NoMembership { label: labels(testimonies) })?;
    let exhibits: Vec<Exhibit<'_>> =
        prepared.iter().flat_map(|prepared| prepared.exhibits.iter().copied()).collect();
    let found = contradictions(&exhibits);
    let refused = prepared.iter().any(|prepared| prepared.told.refused_rightly == Some(true));
    let sides = sides(&prepared, &found, &newest, limits);
    Ok(Verdict {
        conclusion: conclusion(&found, refused),
        file_system: prepared[0].testimony.statement.floor.file_system().to_string(),
        name: newest.name.clone(),
        contradictions: found.iter().map(|clash| clashing(clash, &newest)).collect(),
        sides,
        statements: prepared.into_iter().map(|prepared| prepared.told).collect(),
    })
}

/// Selects one of a statement's views.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatementView {
    /// The view that was accepted.
    Accepted,
    /// The view that was refused.
    Refused,
}

/// One of a statement's views to read files from, with blocks of `source`. Structures in it without a valid
/// signature are left out. `None`: the statement has no such view.
///
/// # Errors
/// [`UnusableStatement`].
pub fn branch(
    testimony: &LabeledStatement,
    showing: StatementView,
    source: Arc<dyn BlockSource + Send + Sync>,
) -> Result<Option<Branch>, UnusableStatement> {
    let prepared = prepare(testimony)?;
    let statement = &testimony.statement;
    let (view, membership) = match showing {
        StatementView::Accepted => (Some(&statement.floor.view), prepared.membership),
        StatementView::Refused => {
            let reply = statement.refused.as_ref().and_then(|refused| refused.reply.as_ref());
            (reply.map(|reply| &reply.view), prepared.refused_membership)
        }
    };
    let (Some(view), Some(membership)) = (view, membership) else { return Ok(None) };
    let view = true_part(view, &membership);
    Ok(Some(Branch::reading(view, membership, statement.floor.device, source)))
}

/// A view without structures that are not validly signed by their devices.
fn true_part(view: &View, members: &Membership) -> View {
    let mut view = view.clone();
    view.slots.retain(|device, slot| slot.value.device() == *device && authentic(members, slot).is_ok());
    view
}

fn labels(testimonies: &[LabeledStatement]) -> String {
    testimonies.iter().map(|testimony| testimony.label.as_str()).collect::<Vec<_>>().join(", ")
}

fn conclusion(found: &[Contradiction], refused: bool) -> Conclusion {
    let of = |clash: &Contradiction| match clash.suspects.convicted() {
        Some(Suspect::Server) => Conclusion::ServerLied,
        Some(Suspect::Device(_)) => Conclusion::KeyUsedTwice,
        None => Conclusion::OneOfSeveralLied,
    };
    let otherwise = if refused { Conclusion::AsTold } else { Conclusion::Fits };
    found.iter().map(of).max().unwrap_or(otherwise)
}

fn clashing(clash: &Contradiction, members: &Membership) -> ContradictionReport {
    let operation = |operation: holdfast_protocol::alarm::Operation| {
        format!("operation {} of {}", operation.number, device_name(members, operation.device))
    };
    let suspect = |suspect: &Suspect| match suspect {
        Suspect::Server => "whoever has the server's key".to_owned(),
        Suspect::Device(device) => format!("whoever has the key of {}", device_name(members, *device)),
    };
    ContradictionReport {
        first: operation(clash.first.0),
        second: operation(clash.second.0),
        why: clash.clash.to_string(),
        suspects: clash.suspects.0.iter().map(suspect).collect(),
        is_proof: clash.suspects.convicted().is_some(),
    }
}

fn prepare(testimony: &LabeledStatement) -> Result<CheckedStatement<'_>, UnusableStatement> {
    let LabeledStatement { label, statement, made_ns, met } = testimony;
    let floor = &statement.floor;
    let forged = |why: String| UnusableStatement::Forged { label: label.clone(), why };
    let mut remarks = Vec::new();
    let mut exhibits = Vec::new();
    let membership = membership(statement, &floor.view).map_err(forged)?;
    if membership.is_none() && !floor.view.slots.is_empty() {
        return Err(UnusableStatement::NoMembership { label: label.clone() });
    }
    let promised = receipt(floor).map_err(forged)?;
    if let Some(members) = &membership {
        for slot in floor.view.slots.values() {
            // The teller verified every accepted structure; one that is not authentic was put in later.
            authentic(members, slot).map_err(|alarm| forged(alarm.to_string()))?;
            if !is_of(floor, members, slot) {
                return Err(forged("a structure in it is of another file system".to_owned()));
            }
            let acknowledged = promised == Some(slot.value.digest());
            exhibits.push(Exhibit { structure: slot, acknowledged });
        }
        if let Err(alarm) = hangs_together(floor, members) {
            remarks.push(format!(
                "what it had accepted has a gap, as an honest device's has only in the middle of an operation: {alarm}"
            ));
        }
    }
    if let (Some(met), Some(members)) = (met, &membership) {
        let peer = met.structure.value.device();
        match verify_progress(floor, members, peer, met) {
            Ok(()) => exhibits.push(Exhibit { structure: &met.structure, acknowledged: true }),
            Err(why) => remarks.push(format!("what it heard from device {} proves nothing: {why}", peer.0)),
        }
    }
    let (refused_membership, confirmed) = refused(statement, &mut exhibits, &mut remarks);
    remarks.truncate(REMARKS_MAX);
    let by = membership.as_ref().or(refused_membership.as_ref());
    let told = StatementReport {
        label: label.clone(),
        by: by.map_or_else(
            || format!("device {}", floor.device.0),
            |members| device_name(members, floor.device),
        ),
        made_ns: *made_ns,
        last_operation: floor.last(),
        has_receipt: promised.is_some(),
        log_size: floor.view.log.size,
        signatures: exhibits.len(),
        met: met.as_ref().zip(by).map(|(met, members)| {
            let structure = &met.structure.value;
            format!("operation {} of {}", structure.number(), device_name(members, structure.device()))
        }),
        refused: statement.refused.as_ref().map(|refused| refused.alarm.to_string()),
        refused_rightly: confirmed,
        is_whole: statement.is_whole,
        remarks,
    };
    Ok(CheckedStatement { testimony, membership, refused_membership, exhibits, told })
}

/// Whether a structure is of the file system, in an epoch that the membership lists.
fn is_of(floor: &Floor, members: &Membership, slot: &Signed<Structure>) -> bool {
    Epochs::of(floor.file_system(), &members.restores).contains(&slot.value.forecast.file_system)
}

/// The membership that a view refers to, if its block is in the statement; an error if the reference is not
/// valid.
fn membership(statement: &Statement, view: &View) -> Result<Option<Membership>, String> {
    if view.slots.is_empty() {
        return Ok(None);
    }
    // A bystander's floor, so that the check assumes nothing to be verified already.
    let bystander = Floor::new(statement.floor.superuser, BYSTANDER);
    let reference = membership_wanted(&bystander, view).map_err(|alarm| alarm.to_string())?;
    let source = Sources::of(&[statement]);
    match Membership::load(&source, &reference) {
        Ok(membership) => membership_holds(&statement.floor.superuser, &membership, view)
            .map(|()| Some(membership))
            .map_err(|alarm| alarm.to_string()),
        Err(ContentError::Source(SourceError::Missing(_))) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The structure for which the server has given a receipt. A list of server keys without a valid signature is
/// an error, since no honest device stores one.
fn receipt(floor: &Floor) -> Result<Option<Digest>, String> {
    if let Some(keys) = &floor.server_keys
        && (keys.value.file_system != floor.file_system() || !keys.verify(&floor.superuser))
    {
        return Err("the list of server keys in it is not signed by the superuser".to_owned());
    }
    let (Some(receipt), Some(own)) = (&floor.receipt, floor.own()) else { return Ok(None) };
    if receipt.value.structure != own.value.digest() {
        // The receipt is for an earlier operation.
        return Ok(None);
    }
    // The superuser may have replaced the list by one without the server of that time.
    Ok(floor.accepts_receipt(receipt, &own.value).then_some(receipt.value.structure))
}

/// Whether a client without any history could accept the accepted view.
fn hangs_together(floor: &Floor, members: &Membership) -> Result<(), Alarm> {
    let reply = ViewReply {
        view: floor.view.clone(),
        peaks: floor.frontier.peaks().to_vec(),
        consistency: Vec::new(),
        blocks: Vec::new(),
    };
    check_look(&Floor::unseen(floor.superuser, BYSTANDER, members), members, &reply).map(drop)
}

/// Examines the refused reply: collects its exhibits, and checks whether it would be refused here too.
fn refused<'a>(
    statement: &'a Statement,
    exhibits: &mut Vec<Exhibit<'a>>,
    remarks: &mut Vec<String>,
) -> (Option<Membership>, Option<bool>) {
    let Some(refused) = &statement.refused else { return (None, None) };
    let Some(reply) = &refused.reply else {
        remarks.push("the answer that was refused was no view; the teller's word is all there is".to_owned());
        return (None, Some(false));
    };
    let members = match membership(statement, &reply.view) {
        Ok(Some(members)) => members,
        Ok(None) => {
            remarks.push("the refused answer names a membership that is not at hand".to_owned());
            return (None, Some(false));
        }
        Err(why) => {
            remarks.push(format!("the refused answer is false in itself: {why}"));
            return (None, Some(true));
        }
    };
    for slot in reply.view.slots.values() {
        match authentic(&members, slot) {
            Ok(()) if is_of(&statement.floor, &members, slot) => {
                exhibits.push(Exhibit { structure: slot, acknowledged: false });
            }
            Ok(()) => remarks.push("in the refused answer: a structure of another file system".to_owned()),
            Err(alarm) => remarks.push(format!("in the refused answer: {alarm}")),
        }
    }
    let confirmed = check_look(&statement.floor, &members, reply).is_err();
    if !confirmed {
        remarks.push(
            "the answer was refused for what it meant to an operation under way; by itself it can be accepted"
                .to_owned(),
        );
    }
    (Some(members), Some(confirmed))
}

/// One of two sides to be compared.
struct StatementSide<'a> {
    label: String,
    statement: &'a Statement,
    view: &'a View,
    membership: &'a Membership,
}

/// The two views between which the first contradiction is. Without one, the views of two statements, or a
/// statement's accepted and refused views.
fn sides(
    prepared: &[CheckedStatement<'_>],
    found: &[Contradiction],
    members: &Membership,
    limits: Limits,
) -> Option<SidesReport> {
    let mut all: Vec<StatementSide<'_>> = Vec::new();
    for prepared in prepared {
        let statement = &prepared.testimony.statement;
        let label = |what: &str| format!("{what} {} ({})", prepared.told.by, prepared.told.label);
        if let Some(membership) = &prepared.membership {
            let view = &statement.floor.view;
            all.push(StatementSide { label: label("what was accepted by"), statement, view, membership });
        }
        if let (Some(membership), Some(refused)) = (&prepared.refused_membership, &statement.refused)
            && let Some(reply) = &refused.reply
        {
            let label = label("what was refused by");
            all.push(StatementSide { label, statement, view: &reply.view, membership });
        }
    }
    let has = |side: &StatementSide<'_>, structure: Digest| {
        side.view.slots.values().any(|slot: &Signed<Structure>| slot.value.digest() == structure)
    };
    let clash = found.first().map(|clash| (clash.first.1, clash.second.1));
    let pair = clash.and_then(|(first, second)| {
        let one = all.iter().position(|side| has(side, first) && !has(side, second))?;
        let other = all.iter().position(|side| has(side, second) && !has(side, first))?;
        Some((one.min(other), one.max(other)))
    });
    let (one, other) = pair.or((all.len() > 1).then_some((0, 1)))?;
    let (ours, theirs) = (&all[one], &all[other]);
    let source: Arc<Sources> = Arc::new(Sources::of(&[ours.statement, theirs.statement]));
    let branch = |side: &StatementSide<'_>| {
        let device = side.statement.floor.device;
        let view = true_part(side.view, side.membership);
        Branch::reading(view, side.membership.clone(), device, source.clone())
    };
    Some(SidesReport {
        ours: ours.label.clone(),
        theirs: theirs.label.clone(),
        devices: device_knowledge(ours.view, theirs.view, members),
        files: compare(&branch(ours), &branch(theirs), limits),
    })
}

fn device_knowledge(ours: &View, theirs: &View, members: &Membership) -> Vec<DeviceKnowledge> {
    let number =
        |view: &View, device: &DeviceId| view.slots.get(device).map_or(0, |slot| slot.value.number());
    let devices: BTreeSet<DeviceId> = ours.slots.keys().chain(theirs.slots.keys()).copied().collect();
    devices
        .into_iter()
        .map(|device| DeviceKnowledge {
            device: device_name(members, device),
            ours: number(ours, &device),
            theirs: number(theirs, &device),
        })
        .collect()
}

impl std::fmt::Display for Conclusion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Conclusion::Fits => "Nothing here contradicts anything else: no lie is shown.",
            Conclusion::AsTold => {
                "Not proven: if the server gave the answer that is kept here, it lied. No signature of the server's \
                 is on that answer, so this rests on the word of who kept it."
            }
            Conclusion::OneOfSeveralLied => {
                "Proven: these signatures cannot all come from an honest server and honest devices. Which of those \
                 named lied, they do not say."
            }
            Conclusion::KeyUsedTwice => {
                "Proven: a device's key has signed two things of which an honest device signs one. The key is used \
                 on two machines (a clone), its state was put back, or it was stolen. The server is not convicted by \
                 this."
            }
            Conclusion::ServerLied => {
                "Proven: whoever has the server's key has promised two things of which only one can be true. It lied, \
                 or was put back to an older state without saying so."
            }
        })
    }
}
