//! Ways to cut files into chunks, each chunk by its digest and length.

use anyhow::Context;
use holdfast_content::file::{ChunkerConfig, cut_run_at};
use holdfast_content::{Block, BlockSink, Chunker, Reference};
use holdfast_crypto::DigestKey;
use rustic_cdc::{Rabin64, RollingHash64};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// A chunk's identity: half of its digest, which is enough among the chunks of one machine.
pub type Name = [u8; 16];

/// A way to cut files into chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cutter {
    /// Holdfast's way: chunk sizes grow with the file.
    Holdfast,
    /// Holdfast's algorithm (FastCDC) with the same sizes for all files.
    FastCdc(ChunkerConfig),
    /// LBFS's way: a breakpoint wherever the Rabin fingerprint of a window has chosen low bits.
    Rabin { window_bits: u32, sizes: ChunkerConfig },
}

/// LBFS's bounds: no chunk below a quarter of the expected size, none above eight times as much.
pub fn sizes(expected: usize) -> ChunkerConfig {
    ChunkerConfig { bytes_min: expected / 4, bytes_average: expected, bytes_max: expected * 8 }
}

impl Cutter {
    /// The name in tables.
    pub fn name(&self) -> String {
        match self {
            Cutter::Holdfast => "Holdfast".to_owned(),
            Cutter::FastCdc(sizes) => format!("FastCDC {}", describe(sizes)),
            Cutter::Rabin { window_bits, sizes } => {
                format!("Rabin {}, {} B window", describe(sizes), 1 << window_bits)
            }
        }
    }

    /// Cuts a file; `each` is called for its chunks in their order.
    ///
    /// # Errors
    /// The file's, with its name.
    pub fn file(&self, path: &Path, each: &mut dyn FnMut(Name, u32)) -> anyhow::Result<()> {
        let named = || path.display().to_string();
        let file = File::open(path).with_context(named)?;
        let size = file.metadata().with_context(named)?.len();
        self.input(BufReader::with_capacity(1 << 20, file), size, each).with_context(named)
    }

    /// Cuts what `input` yields, for a file of `size` bytes.
    ///
    /// # Errors
    /// The input's.
    pub fn input(&self, input: impl Read, size: u64, each: &mut dyn FnMut(Name, u32)) -> anyhow::Result<()> {
        match self {
            Cutter::Holdfast => fast(&ChunkerConfig::for_file(size, Chunker::InPlace), input, each),
            Cutter::FastCdc(sizes) => fast(sizes, input, each),
            Cutter::Rabin { window_bits, sizes } => rabin(*window_bits, sizes, input, each),
        }
    }
}

fn describe(sizes: &ChunkerConfig) -> String {
    let kib = |bytes: usize| bytes as f64 / 1024.0;
    format!("{}/{}/{} KB", kib(sizes.bytes_min), kib(sizes.bytes_average), kib(sizes.bytes_max))
}

/// A sink that counts blocks and keeps none.
struct Listener<'a>(&'a mut dyn FnMut(Name, u32));

impl BlockSink for Listener<'_> {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        (self.0)(half(&reference.address.0), reference.length);
        reference
    }
}

fn half(digest: &[u8; 32]) -> Name {
    let mut name = Name::default();
    name.copy_from_slice(&digest[..16]);
    name
}

fn fast(sizes: &ChunkerConfig, input: impl Read, each: &mut dyn FnMut(Name, u32)) -> anyhow::Result<()> {
    cut_run_at(&mut Listener(each), sizes, 0, input, &mut Vec::new())?;
    Ok(())
}

/// As in sections 3.1.1 and 3.1.2 of the LBFS paper. The window slides over cuts, and over what is too short to be cut.
fn rabin(
    window_bits: u32,
    sizes: &ChunkerConfig,
    mut input: impl Read,
    each: &mut dyn FnMut(Name, u32),
) -> anyhow::Result<()> {
    let mask = sizes.bytes_average.next_power_of_two() as u64 - 1;
    let mut fingerprint = Rabin64::new(window_bits);
    let mut emit = |chunk: &mut Vec<u8>| {
        each(half(blake3::hash(chunk).as_bytes()), chunk.len() as u32);
        chunk.clear();
    };
    let (mut chunk, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let count = input.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        for byte in &buffer[..count] {
            fingerprint.slide(*byte);
            chunk.push(*byte);
            // All ones: zeroes have the fingerprint zero, and must not be a breakpoint.
            let is_breakpoint = fingerprint.get_hash() & mask == mask && chunk.len() >= sizes.bytes_min;
            if is_breakpoint || chunk.len() == sizes.bytes_max {
                emit(&mut chunk);
            }
        }
    }
    if !chunk.is_empty() {
        emit(&mut chunk);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut bytes);
        bytes
    }

    fn cut(cutter: &Cutter, bytes: &[u8]) -> Vec<(Name, u32)> {
        let mut chunks = Vec::new();
        cutter
            .input(bytes, bytes.len() as u64, &mut |name, length| chunks.push((name, length)))
            .expect("it cuts");
        chunks
    }

    fn all() -> [Cutter; 3] {
        let rabin = Cutter::Rabin { window_bits: 6, sizes: sizes(8 << 10) };
        [Cutter::Holdfast, Cutter::FastCdc(sizes(8 << 10)), rabin]
    }

    /// Proves: chunks make up the whole, are within their bounds, and have about the size that was asked for; an
    /// insertion changes only a few of them.
    #[test]
    fn chunks_are_those_of_the_content() {
        // Up to one MiB Holdfast uses the same sizes.
        let bytes = noise(1_000_000);
        let changed = [&bytes[..300_000], b"inserted", &bytes[300_000..]].concat();
        for cutter in all() {
            let (before, after) = (cut(&cutter, &bytes), cut(&cutter, &changed));
            assert_eq!(before.iter().map(|(_, length)| *length as usize).sum::<usize>(), bytes.len());
            let (last, others) = before.split_last().expect("there are some");
            assert!(others.iter().all(|(_, length)| (2 << 10..=64 << 10).contains(length)) && last.1 > 0);
            assert!((64..=256).contains(&before.len()), "{cutter:?}: {}", before.len());
            let new = after.iter().filter(|chunk| !before.contains(chunk)).count();
            assert!((1..=4).contains(&new), "{cutter:?}: {new}");
        }
    }

    /// Proves: runs of zeroes are cut at the largest size, and an empty input has no chunk.
    #[test]
    fn zeroes_and_nothing() {
        let rabin = Cutter::Rabin { window_bits: 4, sizes: sizes(8 << 10) };
        assert_eq!(cut(&rabin, &[0; 200_000]).iter().map(|(_, length)| *length).max(), Some(64 << 10));
        for cutter in all() {
            assert!(cut(&cutter, b"").is_empty());
        }
    }
}
