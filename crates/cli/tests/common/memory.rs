//! Looking for a key in the memory of processes.

use holdfast_crypto::keyfile;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Whether the writable memory of a process contains these bytes.
pub fn has_in_memory(process: u64, wanted: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("this test runs as root");
    let mut memory = fs::File::open(format!("/proc/{process}/mem")).expect("this test runs as root");
    for line in
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")))
    {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let [start, end] = [range.0, range.1].map(|text| u64::from_str_radix(text, 16).expect("a number"));
        // In pieces that overlap. Pieces that cannot be read, such as gaps of a file's mapping, are skipped.
        let mut at = start;
        while at < end {
            let mut piece = vec![0; ((end - at) as usize).min(1 << 20)];
            if memory.seek(SeekFrom::Start(at)).is_ok()
                && memory.read_exact(&mut piece).is_ok()
                && piece.windows(wanted.len()).any(|window| window == wanted)
            {
                return true;
            }
            at += (1 << 20) - wanted.len() as u64;
        }
    }
    false
}

/// The seed of a private key, which a process with the key has in memory.
pub fn seed_of(key: &Path) -> Vec<u8> {
    let text = fs::read_to_string(key).expect("a key");
    keyfile::parse_private(&text, None).expect("a key").seed().to_vec()
}
