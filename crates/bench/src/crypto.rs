//! What signing, verifying and hashing cost (SUNDR 7.2.2).

use crate::report::{Report, measure};
use holdfast_content::{Block, BlockKind};
use holdfast_crypto::{DigestKey, Domain, SigningKey};
use std::hint::black_box;
use std::path::PathBuf;

/// Options of the crypto benchmark.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Operations a round.
    #[arg(long, default_value_t = 5000)]
    operations: u64,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut report = Report::default();
    let key = SigningKey::from_seed(&[7; 32]);
    let public = key.public();
    let message = vec![3; 300];
    let signature = key.sign(Domain::Structure, &message);
    let chunk = vec![5; 8192];
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], chunk.clone());
    let (reference, stored) = (block.reference(), block.to_stored());
    let mut bench = |name: &str, work: &dyn Fn()| -> anyhow::Result<()> {
        let (mut wall, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let (taken, ()) = measure(|| {
                (0..options.operations).for_each(|_| work());
                Ok(())
            })?;
            wall.push(taken.wall / options.operations as f64 * 1e6);
            cpu.push(taken.cpu / options.operations as f64 * 1e6);
        }
        report.figure(name, "us", &wall, &cpu);
        Ok(())
    };
    bench("sign 300 bytes (Ed25519)", &|| {
        black_box(key.sign(Domain::Structure, black_box(&message)));
    })?;
    bench("verify 300 bytes (Ed25519, strict)", &|| {
        assert!(public.verify(Domain::Structure, black_box(&message), &signature));
    })?;
    bench("digest 8 KiB (keyed BLAKE3)", &|| {
        black_box(DigestKey::WELL_KNOWN.digest(Domain::Chunk, black_box(&chunk)));
    })?;
    bench("make an 8 KiB block and compress it", &|| {
        let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], chunk.clone());
        black_box(block.to_stored());
    })?;
    bench("open and verify that block", &|| {
        let opened = stored.clone().open(&DigestKey::WELL_KNOWN, &reference, BlockKind::Chunk);
        assert!(black_box(opened).is_ok());
    })?;
    report.finish(options.json.as_deref())
}
