//! Bytes of no grammar, and of nearly each: what decodes messages, tables, credentials and boot sectors of others.

mod common {
    pub mod mutate;
    pub mod samples;
    pub mod targets;
}
use common::{mutate, samples, targets};

use mutate::{Random, mutated};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use targets::TARGETS;

/// Remembers the largest piece of memory that this thread asked for.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's; noting a number in a thread's own cell, which is made without memory,
// touches nothing of it.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as required of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static MEMORY: Watched = Watched;

/// Most bytes at once for reading what has 64 KiB at most.
const PIECE_MAX: usize = 1 << 20;
const ROUNDS: usize = 4000;

/// Proves: of each target, its samples are values (but those of edges that cannot be), and whatever is made of them and of
/// what the corpus has is a value or refused: without a panic, with one encoding, and in bounded memory.
#[test]
fn any_bytes() {
    for target in TARGETS {
        let mut samples = (target.samples)();
        let values = samples.iter().filter(|sample| (target.run)(sample)).count();
        assert!(values == samples.len(), "{}: {values} of {} samples are values", target.name, samples.len());
        let corpus = format!("{}/tests/corpus/{}", env!("CARGO_MANIFEST_DIR"), target.name);
        for entry in std::fs::read_dir(corpus).into_iter().flatten() {
            samples.push(std::fs::read(entry.expect("an entry").path()).expect("a file"));
        }
        let mut random = Random(0x1234_5678_9abc_def1);
        let (mut values, mut refused) = (0, 0);
        LARGEST.set(0);
        for round in 0..ROUNDS + samples.len() {
            let bytes =
                if round < samples.len() { samples[round].clone() } else { mutated(&samples, &mut random) };
            match (target.run)(&bytes) {
                true => values += 1,
                false => refused += 1,
            }
        }
        assert!(LARGEST.get() <= PIECE_MAX, "{} took {} bytes at once", target.name, LARGEST.get());
        assert!(values > 0 && refused > 0, "{}: {values} values, {refused} refused", target.name);
    }
}

/// Proves: each byte of a stored policy table that is changed is noticed, or means nothing: a table that opens says what
/// it said.
#[test]
fn each_byte_of_a_table() {
    let target = TARGETS.iter().find(|target| target.name == "policy-table").expect("a target");
    let table = (target.samples)().remove(0);
    assert!((target.run)(&table));
    for at in 0..table.len() {
        let mut changed = table.clone();
        changed[at] ^= 1 << (at % 8);
        if (target.run)(&changed) {
            // Not in use: no number of a block or label, no owner, no length.
            assert_eq!(table[at], 0, "byte {at} changed unnoticed");
        }
    }
}

/// What fuzzing writes down and reads again.
#[test]
fn mutation_is_repeatable() {
    let samples = samples::ask_policy(9);
    let run = || {
        let mut random = Random(5);
        (0..100).map(|_| mutated(&samples, &mut random)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}
