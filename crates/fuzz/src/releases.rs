//! Signed releases: what mirrors have, and what signers hand each other.

use crate::{Target, texts};
use holdfast_content::{Block, BlockKind};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_release::draft::Draft;
use holdfast_release::form::{self, Kind};
use holdfast_release::index::{self, BlockLocation, Index, PackName};
use holdfast_release::keys::SignedKeySet;
use holdfast_release::record::RootFile;
use holdfast_release::{file_system, hints, moment, pack, revocation};

pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "root-file",
        samples: || golden(include_str!("../../release/tests/golden/root.txt")),
        run: file::<RootFile>,
    },
    Target { name: "key-set", samples: key_sets, run: file::<SignedKeySet> },
    Target {
        name: "draft",
        samples: || golden(include_str!("../../release/tests/golden/draft.txt")),
        run: file::<Draft>,
    },
    Target {
        name: "revocation",
        samples: || golden(include_str!("../../release/tests/golden/revoked.txt")),
        run: file::<revocation::Revocation>,
    },
    Target {
        name: "file-system-revocation",
        samples: || golden(include_str!("../../release/tests/golden/revoked-file-system.txt")),
        run: file::<file_system::Revocation>,
    },
    Target { name: "index", samples: indexes, run: index },
    Target { name: "pack", samples: packs, run: pack_of_frames },
    Target { name: "moment", samples: || texts(&["2026-11-23T02:45:00Z", "2026-11-23"]), run: moment },
    Target { name: "span", samples: || texts(&["30d", "12h"]), run: span },
];

/// The bytes of a golden file of the releases' own tests.
fn golden(text: &str) -> Vec<Vec<u8>> {
    let digits =
        text.lines().filter_map(|line| line.strip_prefix("file ")).flat_map(|line| line.trim().bytes());
    let digits: Vec<u8> = digits.map(|digit| (digit as char).to_digit(16).expect("hex") as u8).collect();
    vec![digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()]
}

fn key_sets() -> Vec<Vec<u8>> {
    let mut sets = golden(include_str!("../../release/tests/golden/key-set-1.txt"));
    sets.extend(golden(include_str!("../../release/tests/golden/key-set-2.txt")));
    sets
}

fn file<T: Kind>(bytes: &[u8]) -> bool {
    let Ok(value) = form::read::<T>(bytes) else { return false };
    assert!(form::write(&value) == bytes, "two encodings of one value");
    true
}

fn indexes() -> Vec<Vec<u8>> {
    let entry = |byte: u8| {
        let location = BlockLocation { pack: u32::from(byte % 2), offset: u32::from(byte) * 40, bytes: 40 };
        (index::key_of(&Digest([byte; 32])), location)
    };
    let packs = vec![PackName { digest: Digest([1; 32]), bytes: 50_000 }; 2];
    vec![Index { packs, entries: (0..9).map(entry).collect() }.encode(), Index::default().encode()]
}

fn index(bytes: &[u8]) -> bool {
    // A reader takes the head and pages only.
    if let Ok(head) = index::Head::read(bytes) {
        let key = index::key_of(&Digest([3; 32]));
        let range = head.range_of(&key);
        let page = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let page = page.and_then(|(start, end)| bytes.get(start..end)).unwrap_or_default();
        let _ = head.find(page, &key);
    }
    let Ok(index) = Index::decode(bytes) else { return false };
    assert!(index.encode() == bytes, "two encodings of one value");
    true
}

fn packs() -> Vec<Vec<u8>> {
    let frame = |byte: u8| {
        let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], vec![byte; 90]);
        pack::frame(&block.reference().address, &block.to_stored())
    };
    vec![frame(1), [frame(2), frame(3)].concat()]
}

fn pack_of_frames(bytes: &[u8]) -> bool {
    let _ = hints::Sizes::read(bytes);
    let stored = pack::Frame::all(bytes).map(|frame| {
        assert!(frame.bytes() <= pack::FRAME_BYTES_MAX, "a frame beyond its bound");
        let Some(stored) = frame.stored() else { return false };
        let _ = stored.open_any(&DigestKey::WELL_KNOWN, frame.address, 1 << 20);
        true
    });
    let stored: Vec<bool> = stored.collect();
    !stored.is_empty() && stored.iter().all(|stored| *stored)
}

fn moment(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).ok().and_then(moment::parse_moment).is_some()
}

fn span(bytes: &[u8]) -> bool {
    let Some(seconds) = std::str::from_utf8(bytes).ok().and_then(moment::parse_span) else { return false };
    let _ = moment::span(seconds);
    true
}
