//! Look-ups, and proofs that a name is or is not there, in directories of releases from a thousand names to ten
//! million: what they cost grows with the logarithm.

use crate::report::{Report, measure};
use anyhow::Context;
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{BlockSource, Content, DeviceId, Inode, InodeKind, MapRoot, MerkleMap};
use holdfast_crypto::DigestKey;
use holdfast_release::index::Index;
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::store::{Into, PackStore};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};

/// Names put into the map at once.
const BATCH_NAMES: u64 = 65_536;

/// Options of the benchmark of many names.
#[derive(clap::Args)]
pub struct Options {
    /// Names in the directories.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000,10000000")]
    names: Vec<u64>,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Look-ups a round.
    #[arg(long, default_value_t = 2000)]
    lookups: u64,
    /// Where to make them; they need 100 bytes a name.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A name that is there, for an even number; none for an odd one.
fn name(number: u64) -> Vec<u8> {
    format!("host-{number:012}.example.org").into_bytes()
}

/// Numbers all over the place, always the same.
fn scattered(count: u64, below: u64) -> impl Iterator<Item = u64> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % below
    })
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut report = Report::default();
    for count in &options.names {
        let folder = tempfile::Builder::new().prefix("holdfast-bench.").tempdir_in(&options.folder)?;
        let (taken, (root, index)) = measure(|| make(folder.path(), *count))?;
        report.figure(&format!("{count} names: making them"), "s", &[taken.wall], &[]);
        let blocks = FolderBlocks::new(folder.path(), DigestKey::WELL_KNOWN, index);
        look_up(&mut report, options, *count, &blocks, &root)?;
    }
    report.finish(options.json.as_deref())
}

/// A directory of symbolic links, as that of certificates.
fn make(folder: &Path, count: u64) -> anyhow::Result<(MapRoot, Index)> {
    let store = PackStore::open(folder, DigestKey::WELL_KNOWN, &Index::default(), 3, 2)?;
    let map = MerkleMap::new(DigestKey::WELL_KNOWN);
    let mut root = MapRoot(None);
    for first in (0..count).step_by(BATCH_NAMES as usize) {
        let mut edits = BTreeMap::new();
        for number in first..count.min(first + BATCH_NAMES) {
            let mut inode = Inode::new(InodeKind::Symlink, 0o777, DeviceId(0), 1_000_000_000);
            let digest =
                DigestKey::WELL_KNOWN.digest(holdfast_crypto::Domain::ReleasePath, &number.to_le_bytes());
            let target = format!("/hf/@host-{number}.example.org,{digest}").into_bytes();
            inode.size = target.len() as u64;
            inode.content = Content::Target(target);
            edits.insert(name(number * 2), Some(CatalogEntry::value_of(&mut Into(&store), &inode, None)?));
        }
        root = map.apply(&store, &mut Into(&store), &root, edits)?;
    }
    let (index, _) = store.finish()?;
    Ok((root, index))
}

fn look_up(
    report: &mut Report,
    options: &Options,
    count: u64,
    blocks: &dyn BlockSource,
    root: &MapRoot,
) -> anyhow::Result<()> {
    let map = MerkleMap::new(DigestKey::WELL_KNOWN);
    for (what, odd) in [("there", 0), ("not there", 1)] {
        let (mut looked, mut looked_cpu, mut verified, mut verified_cpu) = (vec![], vec![], vec![], vec![]);
        let (mut nodes, mut bytes) = (0, 0);
        for _ in 0..options.rounds {
            let each = 1e6 / options.lookups as f64;
            let (taken, ()) = measure(|| {
                for number in scattered(options.lookups, count) {
                    let found = catalog::lookup(blocks, root, &name(number * 2 + odd))?;
                    anyhow::ensure!(found.is_some() == (odd == 0), "{number}");
                }
                Ok(())
            })?;
            looked.push(taken.wall * each);
            looked_cpu.push(taken.cpu * each);
            let names: Vec<Vec<u8>> =
                scattered(options.lookups, count).map(|number| name(number * 2 + odd)).collect();
            let proofs: Vec<_> =
                names.iter().map(|name| map.prove(blocks, root, name)).collect::<Result<_, _>>()?;
            nodes = proofs.iter().map(|proof| proof.nodes.len()).sum();
            bytes = proofs.iter().map(|proof| holdfast_crypto::encode(proof).len()).sum();
            let (taken, ()) = measure(|| {
                for (name, proof) in names.iter().zip(&proofs) {
                    let found = black_box(map.verify_proof(root, name, proof)).context("a proof")?;
                    anyhow::ensure!(found.is_some() == (odd == 0), "a proof of something else");
                }
                Ok(())
            })?;
            verified.push(taken.wall * each);
            verified_cpu.push(taken.cpu * each);
        }
        let title = format!("{count} names, one that is {what}:");
        report.figure(&format!("{title} look-up on the local disk"), "us", &looked, &looked_cpu);
        report.figure(&format!("{title} verifying the proof"), "us", &verified, &verified_cpu);
        let each = options.lookups as f64;
        report.figure(&format!("{title} blocks of the proof"), "", &[nodes as f64 / each], &[]);
        report.figure(&format!("{title} bytes of the proof"), "", &[bytes as f64 / each], &[]);
    }
    Ok(())
}
