//! Tests of the cache folder: used by several processes at once, crashed, filled and tampered with.

use super::pins::{Pin, Pinning};
use super::*;
use holdfast_content::{Block, BlockKind};
use holdfast_crypto::DigestKey;

/// A block that does not compress.
fn block(number: u64, length: usize) -> Block {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let body = (0..length).map(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) as u8
    });
    Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), body.collect())
}

fn put(cache: &mut DiskCache, block: &Block) {
    cache.insert(block.reference().address, &block.to_stored()).unwrap();
}

fn get(cache: &mut DiskCache, block: &Block) -> Option<StoredBlock> {
    cache.locate(&block.reference().address)?.read()
}

fn segments_in(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    names.sort();
    names
}

/// Proves: blocks survive reopening; an incomplete end loses only the incomplete block, and is overwritten.
#[test]
fn survives_reopening_and_torn_tails() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (0..50).map(|n| block(n, 5000)).collect();
    {
        let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
        blocks.iter().for_each(|block| put(&mut cache, block));
    }
    let segment = segments_in(dir.path()).pop().unwrap();
    let length = fs::metadata(&segment).unwrap().len();
    OpenOptions::new().write(true).open(&segment).unwrap().set_len(length - 3).unwrap();
    let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
    for block in &blocks[..49] {
        assert_eq!(get(&mut cache, block).unwrap(), block.to_stored());
    }
    assert!(get(&mut cache, &blocks[49]).is_none());
    put(&mut cache, &blocks[49]);
    drop(cache);
    assert_eq!(segments_in(dir.path()), [segment]);
    let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
    blocks.iter().for_each(|block| assert_eq!(get(&mut cache, block).unwrap(), block.to_stored()));
}

/// Proves: blocks that one user of the folder stores are found by all others, also blocks stored before they
/// opened it; none writes to another's segment; when all have closed it, the next one continues their
/// segments.
#[test]
fn shared_by_several() {
    let dir = tempfile::tempdir().unwrap();
    let mut caches: Vec<_> = (0..4).map(|_| DiskCache::open(dir.path(), 64 << 20).unwrap()).collect();
    let blocks: Vec<_> = (0..80).map(|n| block(n, 3000)).collect();
    for (at, block) in blocks.iter().enumerate() {
        put(&mut caches[at % 4], block);
        assert_eq!(get(&mut caches[(at + 1) % 4], block), Some(block.to_stored()), "{at}");
    }
    assert_eq!(segments_in(dir.path()).len(), 4);
    for cache in &mut caches {
        blocks.iter().for_each(|block| assert!(get(cache, block).is_some()));
        assert_eq!(cache.len(), 80);
    }
    drop(caches);
    let mut one = DiskCache::open(dir.path(), 64 << 20).unwrap();
    put(&mut one, &block(999, 3000));
    assert_eq!(segments_in(dir.path()).len(), 4, "a segment nobody writes to is gone on with");
}

/// Proves: the limit of bytes holds; used blocks stay, however many are added; unused blocks are removed.
#[test]
fn bounded_and_used_blocks_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = DiskCache::open(dir.path(), 6 << 20).unwrap();
    let blocks: Vec<_> = (0..400).map(|n| block(n, 100_000)).collect();
    for (at, block) in blocks.iter().enumerate() {
        put(&mut cache, block);
        assert!(cache.bytes() <= (6 << 20) + (2 << 20), "{}", cache.bytes());
        if at % 8 == 7 {
            blocks[..5].iter().for_each(|block| assert!(get(&mut cache, block).is_some(), "{at}"));
        }
    }
    assert!(get(&mut cache, &blocks[10]).is_none());
    assert_eq!(get(&mut cache, &blocks[399]).unwrap(), blocks[399].to_stored());
}

/// Proves: segments that one user filled can be removed by another when space is needed, while the first
/// still runs.
#[test]
fn full_segments_are_anybodys() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = DiskCache::open(dir.path(), 4 << 20).unwrap();
    (0..35).for_each(|n| put(&mut first, &block(n, 100_000)));
    let mut second = DiskCache::open(dir.path(), 4 << 20).unwrap();
    (100..140).for_each(|n| put(&mut second, &block(n, 100_000)));
    assert!(second.bytes() <= 6 << 20, "{}", second.bytes());
    assert!(!second.contains(&block(0, 100_000).reference().address));
    first.follow();
    assert!(first.contains(&block(139, 100_000).reference().address));
}

/// Proves: blocks that *another* process used, and recorded as used when it ended, stay too.
#[test]
fn uses_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (0..100).map(|n| block(n, 100_000)).collect();
    let mut writer = DiskCache::open(dir.path(), 4 << 20).unwrap();
    put(&mut writer, &blocks[0]);
    put(&mut writer, &blocks[1]);
    let mut reader = DiskCache::open(dir.path(), 4 << 20).unwrap();
    assert!(get(&mut reader, &blocks[0]).is_some());
    drop(reader);
    for block in &blocks[2..50] {
        put(&mut writer, block);
    }
    assert!(writer.contains(&blocks[0].reference().address));
    assert!(!writer.contains(&blocks[1].reference().address));
}

/// Proves: a block that is being read stays readable when its segment is removed; others notice the removal.
#[test]
fn eviction_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let mut reader = DiskCache::open(dir.path(), 64 << 20).unwrap();
    let first = block(0, 5000);
    put(&mut reader, &first);
    let located = reader.locate(&first.reference().address).unwrap();
    DiskCache::open(dir.path(), 64 << 20).unwrap().clear(true).unwrap();
    assert_eq!(located.read(), Some(first.to_stored()));
    reader.follow();
    assert!(get(&mut reader, &first).is_none());
    put(&mut reader, &first);
    let mut other = DiskCache::open(dir.path(), 64 << 20).unwrap();
    assert!(get(&mut other, &first).is_some(), "it goes on with a segment that others see");
}

/// Proves: whatever is in the folder, opening ends without a panic, and new blocks are stored.
#[test]
fn hostile_folders() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("0000000000000000.segment"), vec![0xff; 100_000]).unwrap();
    fs::write(at("3fffffffffffffff.segment"), b"").unwrap();
    fs::write(at("ffffffffffffffff.segment"), b"").unwrap();
    fs::write(at("size"), "99999999999999999999999999").unwrap();
    fs::create_dir(at("0000000000000005.segment")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("0000000000000006.segment")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(at("0000000000000007.segment")).status().unwrap();
    assert!(fifo.success());
    fs::write(at("0000000000000001.pin"), "{\"id\": 9}").unwrap();
    let mut lie = Vec::new();
    for length in [0u32, 1, 31, 32, 33, u32::MAX, record::BLOCK_MAX as u32 + 33] {
        let mut segment = 0x4842_4332_u32.to_le_bytes().to_vec();
        segment.extend_from_slice(&length.to_le_bytes());
        segment.resize(4096, 7);
        lie.push(segment);
    }
    for (number, segment) in lie.iter().enumerate() {
        fs::write(at(&format!("00000000000001{number:02}.segment")), segment).unwrap();
    }
    let file = File::create(at("0000000000000200.segment")).unwrap();
    file.set_len(1 << 40).unwrap();
    let mut cache = DiskCache::open(dir.path(), 8 << 20).unwrap();
    let kept = block(1, 5000);
    put(&mut cache, &kept);
    assert_eq!(get(&mut cache, &kept), Some(kept.to_stored()));
    let checked = cache.check(&DigestKey::WELL_KNOWN, &mut |_| {}).unwrap();
    assert_eq!(checked.blocks, 1);
    assert_eq!(get(&mut cache, &kept), Some(kept.to_stored()));
}

/// Proves: with a summary, segments need not be read and uses are known; if it is wrong, old or cut off, no
/// visible harm results.
#[test]
fn summaries() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (0..30).map(|n| block(n, 100_000)).collect();
    let mut cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
    blocks[..20].iter().for_each(|block| put(&mut cache, block));
    get(&mut cache, &blocks[3]).unwrap();
    drop(cache);
    drop(DiskCache::open(dir.path(), 1 << 30).unwrap());
    let segment = segments_in(dir.path()).pop().unwrap();
    let index = PathBuf::from(format!("{}.index", segment.display()));
    let written = fs::read(&index).unwrap();
    let all_there = |count: usize| {
        let mut cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
        blocks[..count].iter().all(|block| get(&mut cache, block) == Some(block.to_stored()))
    };
    // Segments that it covers are not read: their headers could contain any bytes.
    let content = fs::read(&segment).unwrap();
    let mut nulled = content.clone();
    nulled[..4].fill(0);
    fs::write(&segment, &nulled).unwrap();
    assert!(all_there(20));
    let cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
    assert!(cache.index[&key_of(&blocks[3].reference().address)].used);
    drop(cache);
    fs::write(&segment, &content).unwrap();
    let mut cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
    blocks[20..].iter().for_each(|block| put(&mut cache, block));
    drop(cache);
    assert!(all_there(30), "what came after the summary is found too");
    for bad in [&written[..5], &written[..written.len() - 1], b"", &[0xff; 100]] {
        fs::write(&index, bad).unwrap();
        assert!(all_there(30));
    }
    let mut elsewhere = written.clone();
    elsewhere[HEADER_AND_KEY..HEADER_AND_KEY + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(&index, &elsewhere).unwrap();
    assert!(all_there(30));
    fs::write(&segment, b"").unwrap();
    fs::write(&index, &written).unwrap();
    let cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
    assert!(cache.is_empty(), "a summary of more than there is counts for nothing");
}

/// Position of the first row's offset in a summary.
const HEADER_AND_KEY: usize = 12 + 16;

/// Proves: a check drops exactly the wrong blocks, also while others use the folder.
#[test]
fn check_drops_what_is_bad() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (0..20).map(|n| block(n, 5000)).collect();
    let mut user = DiskCache::open(dir.path(), 64 << 20).unwrap();
    blocks.iter().for_each(|block| put(&mut user, block));
    let segment = segments_in(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let third = bytes.len() / 20 * 3;
    bytes[third + 1000] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
    let mut told = 0;
    let checked = cache.check(&DigestKey::WELL_KNOWN, &mut |bytes| told += bytes).unwrap();
    assert_eq!((checked.blocks, checked.bad, checked.bytes_torn), (19, 1, 0));
    assert_eq!(told, bytes.len() as u64);
    user.follow();
    for (at, block) in blocks.iter().enumerate() {
        assert_eq!(get(&mut user, block).is_some(), at != 3, "{at}");
    }
    assert_eq!(cache.check(&DigestKey::WELL_KNOWN, &mut |_| {}).unwrap().bad, 0);
    put(&mut user, &blocks[3]);
    assert!(get(&mut cache, &blocks[3]).is_some());
}

/// Proves: pinned blocks survive any amount of other data; unpinned they are kept like all others; after a
/// pin changed, blocks that it no longer needs are not kept for long; a pin that is too large is refused.
#[test]
fn pins_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = DiskCache::open(dir.path(), 4 << 20).unwrap();
    let pinned: Vec<_> = (0..10).map(|n| block(n, 100_000)).collect();
    let pin = |cache: &DiskCache, blocks: &[Block]| {
        let mut pinning = Pinning::begin(cache, 7).unwrap();
        for block in blocks {
            pinning.keep(&block.reference().address, &block.to_stored()).unwrap();
        }
        let (blocks, bytes) = pinning.finish().unwrap();
        let entry = Pin { id: 7, path: "a".into(), at_ns: 0, files: 1, blocks, bytes, whole: true };
        pins::write(dir.path(), &entry).unwrap();
        entry
    };
    let entry = pin(&cache, &pinned);
    assert_eq!(pins::list(dir.path()), [entry]);
    let others: Vec<_> = (100..250).map(|n| block(n, 100_000)).collect();
    others.iter().for_each(|block| put(&mut cache, block));
    pinned.iter().for_each(|block| assert!(get(&mut cache, block).is_some()));
    assert!(cache.bytes() < 6 << 20);
    assert!(cache.bytes_pinned() > 1_000_000);

    // Two of ten are needed from now on.
    pin(&cache, &pinned[..2]);
    cache.follow();
    assert!(cache.bytes_pinned() < 300_000);
    assert!(get(&mut cache, &pinned[1]).is_some());
    let mut too_much = Pinning::begin(&cache, 8).unwrap();
    let kept =
        others.iter().try_for_each(|block| too_much.keep(&block.reference().address, &block.to_stored()));
    assert!(matches!(kept, Err(pins::PinError::TooLarge(_))));
    drop(too_much);
    pins::remove(dir.path(), 8).unwrap();

    pins::remove(dir.path(), 7).unwrap();
    assert!(pins::list(dir.path()).is_empty());
    cache.follow();
    assert_eq!(cache.bytes_pinned(), 0);
    assert!(get(&mut cache, &pinned[0]).is_some(), "it stays until room is needed");
}

/// Proves: the size that was set last applies to users that run, and to later ones.
#[test]
fn sizes_are_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
    (0..80).for_each(|n| put(&mut cache, &block(n, 100_000)));
    assert!(cache.bytes() > 7 << 20);
    DiskCache::choose_size(dir.path(), 4 << 20).unwrap();
    cache.follow();
    assert_eq!(cache.bytes_max(), 4 << 20);
    put(&mut cache, &block(1000, 1000));
    assert!(cache.bytes() <= 5 << 20, "{}", cache.bytes());
    assert_eq!(DiskCache::open(dir.path(), 64 << 20).unwrap().bytes_max(), 4 << 20);
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
}

/// Proves: on a small disk the cache keeps the latest blocks and leaves a share free; if other programs fill
/// the disk it stores nothing more and no call fails; it frees its blocks when space is needed; and once
/// there is space, new blocks are stored and found by all.
#[test]
fn a_full_disk() {
    let Some(small) = Small::mount(4 << 20) else { return };
    let free = || {
        let disk = rustix::fs::statvfs(small.0.path()).unwrap();
        disk.f_bavail * disk.f_frsize
    };
    let mut cache = DiskCache::open(&small.0.path().join("cache"), 64 << 20).unwrap();
    let blocks: Vec<_> = (0..60).map(|n| block(n, 100_000)).collect();
    for block in &blocks {
        let _ = cache.insert(block.reference().address, &block.to_stored());
    }
    assert!(free() >= (4 << 20) / 20 - 110_000, "{}", free());
    let kept: Vec<bool> = blocks.iter().map(|block| get(&mut cache, block).is_some()).collect();
    assert!(!kept[0] && kept[59], "{kept:?}");

    // It frees space for others until only the segment it writes to is left.
    let foreign = small.0.path().join("foreign");
    let mut file = File::create(&foreign).unwrap();
    let refused = blocks.iter().find_map(|block| {
        let _ = io::Write::write_all(&mut file, &vec![1; 4 << 20]);
        cache.insert(block.reference().address, &block.to_stored()).err()
    });
    assert_eq!(refused.expect("nothing is left to give").kind(), io::ErrorKind::StorageFull);
    let before = free();
    assert!(cache.make_room(1 << 20) && free() > before, "{before} {}", free());
    fs::remove_file(&foreign).unwrap();
    cache.clear(true).unwrap();
    put(&mut cache, &blocks[59]);
    let mut other = DiskCache::open(&small.0.path().join("cache"), 64 << 20).unwrap();
    assert_eq!(get(&mut other, &blocks[59]), Some(blocks[59].to_stored()));
}

/// A small file system of its own, where this user may mount.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: u64) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "holdfast-test"])
            .arg(dir.path())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: this user may not mount");
            return None;
        }
        Some(Small(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
