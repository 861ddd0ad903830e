//! `holdfast fs rebuild`: makes a server's data directory from bundles.
//!
//! Order of the work: bundles are read completely, and each statement must be whole and signed. What they
//! contain is combined and checked as clients will check it. Only then are blocks stored, and after these are
//! durable, the order that refers to them. So an interruption at any point leaves a directory that can be
//! rebuilt again, and nothing that a server would serve.

use super::args::Rebuild;
use super::report::{Device, DeviceStanding, Report};
use super::sources::{RebuildSource, collect};
use super::write_list;
use crate::output::{Format, clean, progress};
use holdfast_client::evidence::write_new;
use holdfast_client::rebuild::bundle::Bundle;
use holdfast_client::rebuild::losses::losses;
use holdfast_client::statement::{
    Branch, Conclusion, LabeledStatement, Limits, Statement, device_name, verify,
};
use holdfast_content::{BODY_BYTES_MAX, BlockSource, DeviceId, Membership};
use holdfast_crypto::{Digest, DigestKey, PublicKey};
use holdfast_daemon::keys;
use holdfast_daemon::time::now_ns;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{AddressedBlock, ServerKeys};
use holdfast_protocol::rebuild::{CombinedView, KnownNodes, LogEnd, Nodes, Source, SourceOutcome, combine};
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;
use holdfast_server::ServerConfig;
use holdfast_server::rebuild::{FileSystemState, RebuildTarget};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most damaged files that are listed.
const LOSSES_MAX: usize = 100_000;
/// Most unknown operations, if the end of the log is not proven.
const UNKNOWN_MAX: u64 = 1 << 22;
/// Folder of a data directory for evidence that bundles prove against each other.
const EVIDENCE: &str = "evidence";

/// `holdfast fs rebuild`
pub fn run(arguments: &Rebuild, format: Format) -> Outcome {
    if let Some(lost) = arguments.lost.as_deref().filter(|lost| lost.exists()) {
        return Err(Failure::new(
            Exit::CannotCreate,
            format!("{}: exists already and is not overwritten", lost.display()),
        ));
    }
    let bar = progress("reading bundles");
    let mut bundles = Vec::new();
    for path in &arguments.bundles {
        bundles.push(Bundle::open(path)?);
    }
    let (file_system, superuser) = same_file_system(&bundles)?;
    share_memberships(&mut bundles);
    if !arguments.blocks_only {
        judged(&bundles, &arguments.data)?;
    }

    let mut config = ServerConfig::new(&arguments.data, SocketAddr::from(([0, 0, 0, 0], 0)));
    config.lease_term = Duration::from_secs(arguments.lease);
    config.blocks = arguments.blocks.clone();
    config.blocks_anew = arguments.blocks_anew;
    let site = Arc::new(RebuildTarget::open(&config, file_system)?);
    let present = site.present()?;
    if arguments.blocks_only && present.is_none() {
        let message = format!("{}: nothing of this file system is there yet", arguments.data.display());
        return Err(Failure::new(Exit::NoInput, message).hint("rebuild it first, without --blocks-only"));
    }
    // The bundles whose statements about the order are used.
    let telling = if arguments.blocks_only { 0 } else { bundles.len() };
    let mut combined = combined(&bundles[..telling], present.as_ref(), &arguments.data)?;
    if let Some(present) = &present {
        combined.keep_given_up(&present.given_up);
    }
    let server_keys = match &present {
        Some(present) if arguments.blocks_only => present.server_keys.clone(),
        present => server_keys(arguments, &bundles, present.as_ref(), superuser, site.server_key())?,
    };
    let bundles = Arc::new(bundles);
    let source = Arc::new(RebuildSource { site: site.clone(), bundles: bundles.clone() });
    let members = membership(&combined, superuser, &*source)?;
    combined.check(superuser, &members).map_err(|alarm| {
        Failure::new(
            Exit::Data,
            format!("what the bundles come to is not an honest history: {}", alarm.explain()),
        )
        .hint("one of them was altered, or its device lies: leave out one after the other")
    })?;
    let nodes = nodes(&bundles[..telling], &site, &combined)?;
    let log_is_proven = log_end(&bundles[..telling], present.as_ref(), &combined, &nodes)?;
    let devices = match arguments.blocks_only {
        true => Vec::new(),
        false => standings(&bundles, &combined, &members, &nodes, &arguments.data)?,
    };

    bar.set_message("collecting blocks");
    let slots = combined.view.slots.values();
    let roots = slots.flat_map(|slot| slot.value.handles.values().map(|handle| handle.reference.address));
    let collected = collect(&site, &bundles, roots.collect())?;
    bar.set_message("looking for what is missing");
    let (lost, all_told) = match collected.missing.is_empty() {
        true => (Vec::new(), true),
        false => {
            let branch = Branch::reading(combined.view.clone(), members.clone(), DeviceId::SUPERUSER, source);
            losses(&branch, &collected.missing, LOSSES_MAX)
        }
    };
    if let Some(path) = &arguments.lost {
        write_list(path, &collected.missing)?;
    }
    let report = Report {
        file_system: file_system.to_string(),
        name: members.name.clone(),
        data: arguments.data.clone(),
        operations: combined.view.log.size,
        operations_known: nodes.leaves(),
        log_is_proven,
        dead: combined.view.pending.len(),
        blocks_kept: collected.kept,
        blocks_brought: collected.brought,
        bytes_brought: collected.bytes,
        blocks_missing: collected.missing.len(),
        lost: lost.into_iter().map(|loss| super::report::LostFile::of(loss, &members)).collect(),
        all_told,
        false_blocks: collected
            .false_blocks
            .iter()
            .map(|(place, count)| (bundles[*place].path().to_owned(), *count))
            .collect(),
        devices,
    };
    bar.set_message("writing the order");
    if !arguments.blocks_only && !is_nothing_new(&combined, present.as_ref()) {
        let sequencer = Sequencer::rebuilt(superuser, combined, members, 0);
        site.settle(&sequencer, &server_keys, &nodes)?;
    }
    bar.finish_and_clear();
    format.print(&report, |report| clean(&report.words()))
}

/// Whether the directory already has everything that the bundles say of the order, and is in use; then it is
/// left as it is.
fn is_nothing_new(combined: &CombinedView, present: Option<&FileSystemState>) -> bool {
    present.is_some_and(|present| {
        present.view.log == combined.view.log
            && present.view.slots == combined.view.slots
            && present.view.pending.iter().any(|entry| !entry.dead)
    })
}

/// The file system of all bundles, and its superuser's key.
fn same_file_system(bundles: &[Bundle]) -> Outcome<(Digest, PublicKey)> {
    let first = &bundles[0].statement.floor;
    for bundle in bundles {
        let floor = &bundle.statement.floor;
        if floor.file_system() != first.file_system() {
            let message = format!(
                "{} is of file system {}, {} of {}",
                bundles[0].path().display(),
                first.file_system(),
                bundle.path().display(),
                floor.file_system()
            );
            return Err(Failure::new(Exit::Usage, message).hint("rebuild one file system after the other"));
        }
    }
    Ok((first.file_system(), first.superuser))
}

/// Adds the blocks of the membership that one device's cache has lost and another's has.
fn share_memberships(bundles: &mut [Bundle]) {
    let wanted = |statement: &Statement| membership_wanted(&statement.floor, &statement.floor.view).ok();
    let all: Vec<AddressedBlock> = bundles
        .iter()
        .filter_map(|bundle| wanted(&bundle.statement))
        .filter_map(|wanted| {
            let address = wanted.address;
            let in_statements = bundles.iter().flat_map(|bundle| &bundle.statement.blocks);
            let told =
                in_statements.filter(|block| block.address == address).map(|block| block.block.clone());
            let mut all = told.chain(bundles.iter().filter_map(|bundle| bundle.block(&address)));
            let block = all.find(|block| {
                block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX).is_ok()
            })?;
            Some(AddressedBlock { address, block })
        })
        .collect();
    for bundle in bundles {
        let Some(wanted) = wanted(&bundle.statement) else { continue };
        let blocks = &mut bundle.statement.blocks;
        if !blocks.iter().any(|block| block.address == wanted.address) {
            blocks.extend(all.iter().find(|block| block.address == wanted.address).cloned());
        }
    }
}

/// Compares the statements: forged ones are refused, and those that prove a fork.
fn judged(bundles: &[Bundle], data: &Path) -> Outcome {
    let testimony = |bundle: &Bundle| LabeledStatement {
        label: bundle.path().display().to_string(),
        made_ns: now_ns(),
        statement: bundle.statement.clone(),
        met: None,
    };
    let testimonies: Vec<LabeledStatement> = bundles.iter().map(testimony).collect();
    let verdict = verify(&testimonies, Limits { paths: 0, differences: 0 })?;
    if verdict.conclusion < Conclusion::OneOfSeveralLied {
        return Ok(());
    }
    let clash = verdict.contradictions.first();
    let what = clash.map_or_else(
        || "their signatures contradict each other".to_owned(),
        |clash| format!("{} and {}: {}", clash.first, clash.second, clash.why),
    );
    let all: Vec<usize> = (0..bundles.len()).collect();
    Err(forked(bundles, &all, &what, data))
}

/// Stores what two bundles state as evidence, and returns the explanation.
fn forked(bundles: &[Bundle], between: &[usize], what: &str, data: &Path) -> Failure {
    let folder = data.join(EVIDENCE);
    let mut kept: Vec<PathBuf> = Vec::new();
    for place in between {
        let Some(bundle) = bundles.get(*place) else { continue };
        let name = bundle.path().file_name().unwrap_or_default().to_string_lossy();
        let path = folder.join(format!("{name}-{}.evidence", now_ns()));
        let words = format!(
            "What a device had accepted, as its bundle for a rebuild says; another bundle contradicts it: {what}"
        );
        let written = std::fs::create_dir_all(&folder)
            .and_then(|()| write_new(&path, &bundle.statement.clone().into_evidence(words)));
        match written {
            Ok(()) => kept.push(path),
            Err(error) => tracing::warn!(path = %path.display(), %error, "evidence could not be kept"),
        }
    }
    let names: Vec<String> =
        between.iter().filter_map(|place| Some(bundles.get(*place)?.path().display().to_string())).collect();
    let files: Vec<String> = kept.iter().map(|path| path.display().to_string()).collect();
    Failure::new(
        Exit::Alarm,
        format!("ALARM: these cannot all be of one history: {}. {what}. Nothing was rebuilt", names.join(", ")),
    )
    .hint(format!(
        "the lost server showed different people different things, a key was used twice, or a bundle is made up: \
         `holdfast evidence verify {}` says what is proven. Choose whose history is to go on, and rebuild from those \
         bundles alone; `holdfast evidence merge` lays the other one beside it",
        files.join(" ")
    ))
}

/// All sources of information: the bundles, and then the data directory.
fn sources<'a>(bundles: &'a [Bundle], present: Option<&'a FileSystemState>) -> Vec<Source<'a>> {
    let told = bundles.iter().map(|bundle| Source::from(&bundle.statement.floor));
    let there =
        present.map(|present| Source { view: &present.view, frontier: &present.frontier, floor: None });
    told.chain(there).collect()
}

/// Combines all sources.
fn combined(bundles: &[Bundle], present: Option<&FileSystemState>, data: &Path) -> Outcome<CombinedView> {
    match combine(&sources(bundles, present)) {
        Ok(Some(combined)) => Ok(combined),
        Ok(None) => {
            Err(Failure::new(Exit::NoInput, "none of the devices has seen anything of the file system"))
        }
        Err(disagreement) => {
            let (one, other) = disagreement.between;
            let failure = forked(bundles, &[one, other], &disagreement.what, data);
            match one.max(other) < bundles.len() {
                true => Err(failure),
                false => Err(Failure::new(
                    Exit::Alarm,
                    format!(
                        "ALARM: {} and what the directory holds cannot both be of one history: {}. Nothing was changed",
                        bundles[one.min(other)].path().display(),
                        disagreement.what
                    ),
                )
                .hint(
                    "if the directory was served since it was rebuilt, its device comes too late: make a new key on it, \
                     and have the superuser enrol that (`holdfast fs device add`)",
                )),
            }
        }
    }
}

fn membership(
    combined: &CombinedView,
    superuser: PublicKey,
    source: &dyn BlockSource,
) -> Outcome<Membership> {
    let wanted = combined.membership_wanted(superuser).map_err(|alarm| {
        Failure::new(Exit::Data, format!("the newest bundle is forged or damaged: {}", alarm.explain()))
    })?;
    Membership::load(source, &wanted).map_err(|error| {
        Failure::new(Exit::Data, format!("the list of members and their keys is in no bundle: {error}"))
            .hint("it is on every machine that has used the file system since it last changed: collect more bundles")
    })
}

/// The known nodes of the log.
fn nodes(bundles: &[Bundle], site: &RebuildTarget, combined: &CombinedView) -> Outcome<Nodes> {
    let mut known = KnownNodes::default();
    let size = combined.view.log.size;
    for bundle in bundles {
        let floor = &bundle.statement.floor;
        known.offer_view(&floor.view);
        known.offer_frontier(&floor.frontier);
        for (first, leaves) in &bundle.leaves {
            for (index, leaf) in (*first..size).zip(leaves).filter(|(_, leaf)| **leaf != Digest::ZERO) {
                known.offer(0, index, *leaf);
            }
        }
    }
    site.offer_nodes(&mut known)?;
    Ok(known.of_log(&combined.frontier))
}

/// Checks whether the end of the log is proven.
fn log_end(
    bundles: &[Bundle],
    present: Option<&FileSystemState>,
    combined: &CombinedView,
    nodes: &Nodes,
) -> Outcome<bool> {
    let newest = bundles
        .get(combined.newest)
        .map_or("the data directory".to_owned(), |bundle| bundle.path().display().to_string());
    let refused = |why: String| {
        Err(Failure::new(Exit::Data, format!("{newest}: the end of its log is made up: {why}"))
            .hint("leave it out"))
    };
    match combined.log_end(&sources(bundles, present), nodes) {
        LogEnd::Proven => Ok(true),
        LogEnd::Unproven if combined.view.log.size - nodes.leaves() > UNKNOWN_MAX => {
            refused(format!("nearly all of its {} operations are known to nobody", combined.view.log.size))
        }
        LogEnd::Unproven => Ok(false),
        LogEnd::False(why) => refused(why),
    }
}

/// How each device will be affected by the result.
fn standings(
    bundles: &[Bundle],
    combined: &CombinedView,
    members: &Membership,
    nodes: &Nodes,
    data: &Path,
) -> Outcome<Vec<Device>> {
    let mut devices = Vec::new();
    for (place, bundle) in bundles.iter().enumerate() {
        let floor: &Floor = &bundle.statement.floor;
        let standing = match combined.standing(floor, members, nodes) {
            SourceOutcome::GoesOn => DeviceStanding::GoesOn,
            SourceOutcome::Unproven => DeviceStanding::Unproven,
            SourceOutcome::Alarms(alarm) => {
                return Err(forked(bundles, &[combined.newest, place], &alarm.explain(), data));
            }
        };
        devices.push(Device {
            number: floor.device.0,
            name: device_name(members, floor.device),
            standing,
            operations: floor.log().size,
        });
    }
    let told: HashSet<u32> = devices.iter().map(|device| device.number).collect();
    for (device, slot) in &combined.view.slots {
        if !told.contains(&device.0) && members.is_active(*device) {
            devices.push(Device {
                number: device.0,
                name: device_name(members, *device),
                standing: DeviceStanding::NotHeard,
                operations: slot.value.forecast.log.size + 1,
            });
        }
    }
    devices.sort_by_key(|device| device.number);
    devices.dedup_by_key(|device| device.number);
    Ok(devices)
}

/// The newest list of server keys, if it contains the new server's; otherwise one that the superuser signs
/// now.
fn server_keys(
    arguments: &Rebuild,
    bundles: &[Bundle],
    present: Option<&FileSystemState>,
    superuser: PublicKey,
    server_key: PublicKey,
) -> Outcome<Signed<ServerKeys>> {
    let lists = bundles.iter().filter_map(|bundle| bundle.statement.floor.server_keys.as_ref());
    let lists =
        lists.chain(present.map(|present| &present.server_keys)).filter(|list| list.verify(&superuser));
    let newest = lists.max_by_key(|list| list.value.sequence);
    if let Some(newest) = newest
        && newest.value.keys.contains(&server_key)
    {
        return Ok(newest.clone());
    }
    let data = arguments.data.display();
    let Some(key) = &arguments.superuser else {
        let message = format!("the server's key in {data} is a new one, and the superuser has not signed it");
        return Err(Failure::new(Exit::NotAllowed, message).hint(format!(
            "give the superuser's key (--superuser), or put the lost server's key into {data}/server-key"
        )));
    };
    let key_holder = keys::read(key)?.into_holder()?;
    if key_holder.public() != superuser {
        let message = format!("{}: not the superuser's key of this file system", key.display());
        return Err(Failure::new(Exit::NotAllowed, message));
    }
    let list = ServerKeys {
        file_system: superuser.file_system_id(),
        sequence: newest.map_or(1, |newest| newest.value.sequence + 1),
        keys: vec![server_key],
    };
    Signed::by(list, &*key_holder).map_err(|error| Failure::new(Exit::Unavailable, error))
}
